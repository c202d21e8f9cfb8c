//! Tests of the daemon, its client and the libraries from outside, on a machine without a GPU. They are one program,
//! because linking takes longer than most tests. A test that cannot share its process starts this program again
//! ([`orind_testing::program::again`]).

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and report")]

mod adapters;
mod agents;
mod allocation;
mod bench;
mod chat;
mod commands;
mod compare;
mod control_characters;
mod core_tour;
mod cpu;
mod daemon;
mod drafts;
mod embeddings;
mod engine;
mod fingerprint;
mod first_contact;
mod gate;
mod grammar_limits;
mod graph;
mod install;
mod invariance;
mod lanes;
mod linkage;
mod lora;
mod nixos;
mod not_finite;
mod orin;
mod orinctl;
mod page_cache;
mod prefixes;
mod pull;
mod quality;
mod recorded;
mod residents;
mod run;
mod run_limits;
mod serving;
mod sweep;
mod synthetic;
mod tokenizer;
mod tune;
mod tune_cli;
mod tune_store;
