# Everything to build, test and measure, to compile kernels, and to run the simulator.
{
  stdenv,
  mkShell,
  addDriverRunpath,
  rustPlatform,
  cargo,
  clippy,
  rustc,
  rustfmt,
  rust-analyzer,
  cargo-deny,
  curl,
  jq,
  python3,
  nix,
  orind-nvrtc,
}:
mkShell {
  packages = [
    cargo
    clippy
    rustc
    rustfmt
    rust-analyzer
    cargo-deny
    curl
    jq
    python3
    nix
  ];

  env = {
    RUST_SRC_PATH = "${rustPlatform.rustLibSrc}";
    # `cargo run -p orind-kernels -- build`
    ORIND_NVRTC = "${orind-nvrtc}/lib/libnvrtc.so.12";
    # Programs built here find libcuda where NixOS has the drivers. It is written into them rather than
    # into LD_LIBRARY_PATH, which every program started from this shell would inherit, the system's
    # own included: those break on libraries that were linked against another libc.
    "CARGO_TARGET_${stdenv.hostPlatform.rust.cargoEnvVarTarget}_RUSTFLAGS" =
      "-C link-arg=-Wl,-rpath,${addDriverRunpath.driverLink}/lib";
  };
}
