# Replaces nixpkgs for builds without a network: `nixos/try.sh` adds a small copy of nixpkgs (`core`) and a
# list of the machine's programs (`host.json`).
{
  outputs =
    { self }:
    let
      lib = import ./core/lib;
    in
    {
      # The options of `nixpkgs/nixos.nix`, without an implementation.
      lib = lib // {
        nixosSystem = { modules }: lib.evalModules { modules = modules ++ [ ./nixos.nix ]; };
      };
      # `nix develop` uses this bash.
      legacyPackages.x86_64-linux = import ./. { system = "x86_64-linux"; };
    };
}
