# nixpkgs' own builders with the programs of this machine. The standard environment, its hooks, those of
# Rust, the vendoring of Cargo.lock, fetchurl, mkShell and the compiler wrapper are nixpkgs' code
# (`./core`); bash, coreutils, the C compiler with its libc, Rust and every other program are the host's,
# linked into the store by name. Builds see all of /usr, so missing dependencies of a package go unnoticed.
{
  system,
  overlays ? [ ],
  config ? { },
}:
let
  core = ./core;
  lib = import ./core/lib;
  # Paths of the host's programs, by name; its Rust.
  host = builtins.fromJSON (builtins.readFile ./host.json);

  # nixpkgs' standard environment for programs in /usr, with patchelf as on Linux.
  stages =
    {
      localSystem,
      crossSystem,
      config,
      overlays,
      ...
    }:
    let
      stdenv =
        { cc, patchelf }:
        import (core + "/pkgs/stdenv/generic") {
          name = "stdenv-host";
          buildPlatform = localSystem;
          hostPlatform = localSystem;
          targetPlatform = localSystem;
          shell = "/bin/bash";
          initialPath = [
            "/"
            "/usr"
          ];
          preHook = "export NIX_ENFORCE_PURITY="; # libc is not in the store
          extraNativeBuildInputs = lib.optional (patchelf != null) patchelf;
          fetchurlBoot = null;
          inherit cc config;
        };
      bare = stdenv {
        cc = null;
        patchelf = null;
      };
      patchelf = link bare "patchelf" [ "patchelf" ] {
        setupHook = core + "/pkgs/by-name/pa/patchelf/setup-hook.sh";
      };

      # nixpkgs' wrappers of compiler and linker, for the target of `stdenvNoCC`.
      compiler =
        stdenvNoCC:
        let
          inherit (stdenvNoCC) hostPlatform targetPlatform;
          cross = targetPlatform.config != hostPlatform.config;
          debian = lib.optionalString cross "${targetPlatform.parsed.cpu.name}-linux-gnu-";
          prefix = lib.optionalString cross "${targetPlatform.config}-";
          nativePrefix = "${stdenvNoCC.mkDerivation {
            name = "host-cc";
            buildCommand = ''
              mkdir -p $out/bin
              for program in gcc g++ cpp ar as ld nm objcopy objdump ranlib readelf strip; do
                ln -s /usr/bin/${debian}$program $out/bin/${prefix}$program
              done
            '';
          }}";
          common = {
            inherit lib stdenvNoCC nativePrefix;
            nativeTools = true;
            nativeLibc = true;
            isGNU = true;
            runtimeShell = "/bin/bash";
            expand-response-params = "";
          };
          bintools = import (core + "/pkgs/build-support/bintools-wrapper") (
            common
            // {
              name = "host-bintools";
              extraBuildCommands = "ln -s ${nativePrefix}/bin/${prefix}strip $out/bin/";
            }
          );
        in
        import (core + "/pkgs/build-support/cc-wrapper") (
          common
          // {
            name = "host-cc";
            inherit bintools;
          }
        );
    in
    [
      (_: {
        __raw = true;
        inherit patchelf;
        cc = compiler bare;
      })
      (previous: {
        inherit config overlays;
        stdenv = stdenv { inherit (previous) cc patchelf; };
      })
    ]
    ++ lib.optionals (crossSystem != localSystem) [
      # Packages that run on the build machine and compile for the target, and those that run on the target.
      (previous: {
        inherit config overlays;
        selfBuild = false;
        allowCustomOverrides = true;
        stdenv = previous.stdenv.override { targetPlatform = crossSystem; };
      })
      (previous: {
        inherit config overlays;
        selfBuild = false;
        stdenv = previous.stdenv.override {
          hostPlatform = crossSystem;
          targetPlatform = crossSystem;
          cc = compiler (bare.override { targetPlatform = crossSystem; });
        };
      })
    ];

  # A package of host programs; missing ones are left out.
  link =
    stdenv: name: programs: attrs:
    let
      there = program: host.programs ? ${program};
    in
    stdenv.mkDerivation (
      {
        inherit name;
        buildCommand = ''
          mkdir -p $out/bin
          for program in ${toString (lib.attrVals (lib.filter there programs) host.programs)}; do
            ln -s $program $out/bin/
          done
          fixupPhase
        '';
        meta.platforms = lib.platforms.linux;
      }
      // attrs
    );

  packages =
    final: _:
    let
      inherit (final) callPackage;
      program = link final.buildPackages.stdenvNoCC;
    in
    lib.mapAttrs (name: programs: program name programs { }) {
      bashInteractive = [ "bash" ];
      cargo = [ "cargo" ];
      cargo-deny = [ "cargo-deny" ];
      clippy = [
        "cargo-clippy"
        "clippy-driver"
      ];
      curl = [ "curl" ];
      diffutils = [ "diff" ];
      jq = [ "jq" ];
      nix = [ "nix" ];
      python3 = [ "python3" ];
      rust-analyzer = [ "rust-analyzer" ];
      rustfmt = [
        "cargo-fmt"
        "rustfmt"
      ];
      unzip = [ "unzip" ];
    }
    // {
      path = core;
      rustc = program "rustc" [
        "rustc"
        "rustdoc"
      ] { inherit (host) version; };
      rust = callPackage (core + "/pkgs/build-support/rust/lib") { };
      rustPlatform =
        final.makeRustPlatform {
          inherit (final) cargo rustc;
          # cargo-auditable would record the dependencies in the programs.
          cargo-auditable.meta.broken = true;
        }
        // {
          rustLibSrc = "${host.sysroot}/lib/rustlib/src/rust/library";
        };
      mkShell = callPackage (core + "/pkgs/build-support/mkshell") { };
      fetchurl = import (core + "/pkgs/build-support/fetchurl") {
        inherit lib;
        inherit (final) stdenvNoCC;
        curl = null;
      };
      inherit
        (import (core + "/pkgs/pkgs-lib") {
          inherit lib;
          pkgs = final;
        })
        formats
        ;
      # orind.toml is a flat table.
      remarshal = final.writeScriptBin "json2toml" ''
        #!/bin/sh
        jq -r 'to_entries[] | "\(.key) = \(.value | @json)"' "$1" >"$2"
      '';
      # `core` does not have it yet.
      autoAddDriverRunpath = final.makeSetupHook {
        name = "auto-add-driver-runpath";
        propagatedBuildInputs = [ final.addDriverRunpath ];
      } ./auto-add-driver-runpath.sh;
    };
in
import (core + "/pkgs/top-level") {
  localSystem = system;
  inherit config;
  overlays = [ packages ] ++ overlays;
  stdenvStages = stages;
}
