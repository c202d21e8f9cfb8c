# The example for the AGX Orin against jetpack-nixos' own options: what it sets exists and has the right
# type, and the assertions of services.orind hold. Only options are evaluated; no package is.
{
  # Paths: the stand-in for nixpkgs, and jetpack-nixos.
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
          # jetpack-nixos also sets options of NixOS that the stand-in does not have.
          _module.check = false;
          nixpkgs = { inherit pkgs; };
        }
      ];
    })
    config
    options
    ;
  # jetpack-nixos' own assertions ask for its packages.
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
