# Stands in for nixpkgs where it cannot be fetched and something shall be built: `nixos/try.sh` puts a
# small copy of nixpkgs (`core`) and what it found on the machine (`host.json`) beside it.
{
  outputs =
    { self }:
    let
      lib = import ./core/lib;
    in
    {
      # The options of `nixpkgs/nixos.nix`; there is nothing of NixOS behind them.
      lib = lib // {
        nixosSystem = { modules }: lib.evalModules { modules = modules ++ [ ./nixos.nix ]; };
      };
      # `nix develop` takes its bash from here.
      legacyPackages.x86_64-linux = import ./. { system = "x86_64-linux"; };
    };
}
