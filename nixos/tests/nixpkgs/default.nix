# The part of nixpkgs that orind's expressions use, with the same names and arguments. A derivation has a
# name, outputs and dependencies, so that everything is evaluated; it cannot be built.
{
  system,
  overlays ? [ ],
  config ? { },
  crossSystem ? system,
}:
let
  lib = import ./lib;
  platform = lib.systems.elaborate;

  # Refuses, like nixpkgs, packages that are not free or not for this platform.
  permitted =
    attrs:
    let
      meta = attrs.meta or { };
      licences = lib.toList (meta.license or [ ]);
      free = lib.all (licence: licence.free) licences;
    in
    lib.throwIfNot (free || (config.allowUnfreePredicate or (_: false)) attrs)
      "${lib.getName attrs} is not free"
      (
        lib.throwIfNot (lib.elem crossSystem (meta.platforms or [ crossSystem ]))
          "${lib.getName attrs} is not for ${crossSystem}"
          attrs
      );

  mkDerivation =
    attrs:
    let
      checked = permitted attrs;
      inputs = removeAttrs checked [
        "cargoLock"
        "env"
        "meta"
        "src"
      ];
      drv = derivation (
        inputs
        // (attrs.env or { })
        // {
          name = attrs.name or "${attrs.pname}-${attrs.version}";
          inherit system;
          builder = "/bin/sh";
          src = attrs.src or null;
          lock = builtins.hashFile "sha256" (attrs.cargoLock.lockFile or ./default.nix);
        }
      );
    in
    drv
    // {
      meta = attrs.meta or { };
      overrideAttrs = changes: mkDerivation (attrs // changes);
    };

  tool = name: mkDerivation { inherit name; };

  base = pkgs: {
    inherit lib pkgs system;
    config = {
      cudaSupport = false;
    }
    // config;
    callPackage = lib.callPackageWith pkgs;
    stdenv = {
      buildPlatform = platform system;
      hostPlatform = platform crossSystem;
    };
    stdenvNoCC = pkgs.stdenv // {
      inherit mkDerivation;
    };
    fetchurl = args: "/nix/store/${baseNameOf args.url}";
    mkShell = attrs: mkDerivation ({ name = "nix-shell"; } // attrs);
    runCommand = name: attrs: command: mkDerivation (attrs // { inherit name command; });
    addDriverRunpath = {
      driverLink = "/run/opengl-driver";
    };
    rustPlatform = {
      buildRustPackage = mkDerivation;
      rustLibSrc = tool "rust-lib-src";
    };
    rustc = tool "rustc" // {
      version = "1.95.0";
    };
    formats.toml = _: {
      generate = name: value: builtins.toFile name (builtins.toJSON value);
    };
    pkgsCross.aarch64-multiplatform = import ./. {
      inherit system overlays config;
      crossSystem = "aarch64-linux";
    };
    # Evaluates the machines with their common configuration; starts nothing.
    testers.runNixOSTest =
      test:
      let
        inherit
          (lib.evalModules {
            modules = [
              test
              ./vm.nix
            ];
          })
          config
          ;
        machine =
          module:
          (lib.evalModules {
            modules = [
              ./nixos.nix
              config.defaults
              module
              { nixpkgs = { inherit pkgs; }; }
            ];
          }).config;
        wrong = lib.filter (each: !each.assertion) (
          lib.concatMap (module: (machine module).assertions) (lib.attrValues config.nodes)
        );
      in
      lib.throwIf (wrong != [ ]) (toString (map (each: each.message) wrong)) (mkDerivation {
        name = "vm-test-${config.name}";
        inherit (config) testScript;
      });
  }
  // lib.genAttrs [
    "autoAddDriverRunpath"
    "cargo"
    "cargo-deny"
    "clippy"
    "curl"
    "jq"
    "nix"
    "nixfmt-tree"
    "python3"
    "rust-analyzer"
    "rustfmt"
    "unzip"
  ] tool;
in
lib.fix (lib.foldl' (lib.flip lib.extends) base overlays)
