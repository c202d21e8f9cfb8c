# Evaluates the example for the AGX Orin with the options of jetpack-nixos: its settings exist and have the
# right type, and the assertions of services.orind hold. Only options are evaluated, no packages.
{
  # Paths: the stub of nixpkgs, and jetpack-nixos.
  nixpkgs,
  jetpack,
}:
let
  pkgs = import nixpkgs {
    system = "aarch64-linux";
    overlays = [ (final: _: { orind = final.callPackage ../package.nix { }; }) ];
  };
  inherit (pkgs) lib;
  module = ../module.nix;
  complaints = map (each: each.message) (lib.filter (each: !each.assertion) ours);

  inherit
    (lib.evalModules {
      modules = [
        module
        "${nixpkgs}/nixos.nix"
        (import "${jetpack}/modules" (_: _: { }))
        ../examples/agx-orin.nix
        {
          # jetpack-nixos also sets NixOS options that the stub lacks.
          _module.check = false;
          nixpkgs = { inherit pkgs; };
        }
      ];
    })
    config
    options
    ;
  # jetpack-nixos' own assertions evaluate its packages.
  ours = lib.concatMap (each: each.value) (
    lib.filter (each: each.file == toString module) options.assertions.definitionsWithLocations
  );
in
lib.throwIf (complaints != [ ]) (toString complaints) {
  inherit (config.hardware.nvidia-jetpack)
    som
    carrierBoard
    majorVersion
    maxClock
    ;
  inherit (config.services.nvpmodel) profileNumber;
  inherit (config.services.orind) settings users;
}
