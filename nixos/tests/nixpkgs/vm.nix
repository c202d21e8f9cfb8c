# The options of a NixOS test that orind's test uses.
{ lib, ... }:
let
  inherit (lib) mkOption types;
in
{
  options = {
    name = mkOption { type = types.str; };
    testScript = mkOption { type = types.lines; };
    nodes = mkOption { type = types.attrsOf types.deferredModule; };
    defaults = mkOption { type = types.deferredModule; };
  };
}
