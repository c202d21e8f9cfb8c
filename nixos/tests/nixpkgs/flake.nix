# Stands in for nixpkgs where it cannot be fetched: `nixos/check.sh` puts nixpkgs' own `lib` beside it.
{
  outputs =
    { self }:
    let
      lib = import ./lib;
    in
    {
      lib = lib // {
        nixosSystem =
          { modules }:
          lib.evalModules {
            modules = modules ++ [ ./nixos.nix ];
          };
      };
    };
}
