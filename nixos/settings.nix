# The daemon's settings as options. `settings.json` lists keys, types, limits and defaults, and a test
# (tests/host/nixos.rs) compares it with `config::Config`. Descriptions come from the table in
# docs/configuration.md. An unknown key or a value out of range fails before anything is built.
{ lib }:
let
  keys = lib.importJSON ./settings.json;

  # | `key` | default | meaning |
  row = builtins.match "[|] `([a-z_]+)` [|] ([^|]*) [|] (.*) [|]";
  rows = lib.filter (cells: cells != null) (
    map row (lib.splitString "\n" (builtins.readFile ../docs/configuration.md))
  );
  meanings = lib.listToAttrs (
    map (cells: lib.nameValuePair (lib.head cells) (lib.last cells)) rows
  );

  typeOf =
    key:
    {
      # Not `types.path`: a literal path would be copied into the store, and models are large.
      path = lib.types.strMatching "/.*" // {
        description = "absolute path, as a string";
      };
      optional_path = lib.types.strMatching "(/.+)?" // {
        description = "absolute path, as a string, or nothing";
      };
      address = lib.types.strMatching "([^:]+:[0-9]+|\\[[^]]+]:[0-9]+)?" // {
        description = "address and port, or nothing";
      };
      mode = lib.types.strMatching "[0-7]{1,4}" // {
        description = "permissions in octal digits";
      };
      string = lib.types.str;
      bool = lib.types.bool;
      list = lib.types.listOf lib.types.str;
      tables = lib.types.listOf (lib.types.attrsOf lib.types.anything);
      enum = lib.types.enum (key.values or [ ]);
      integer = lib.types.ints.between (key.min or 0) (key.max or 0);
    }
    .${key.type};
in
lib.mapAttrs (
  name: key:
  lib.mkOption {
    type = typeOf key;
    inherit (key) default;
    description = meanings.${name};
  }
) keys
