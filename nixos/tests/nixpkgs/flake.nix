# Replaces nixpkgs where it cannot be fetched; `nixos/check.sh` adds nixpkgs' own `lib`.
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
