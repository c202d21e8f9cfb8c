# The NixOS options that orind's module defines or reads, with their types where they matter. Any other
# option is an error, as in NixOS.
{ config, lib, ... }:
let
  inherit (lib) mkOption types;
  any = mkOption {
    type = types.anything;
    default = { };
  };
  unit =
    options:
    mkOption {
      type = types.attrsOf (types.submodule { inherit options; });
      default = { };
    };
  words = list types.str;
  list =
    of:
    mkOption {
      type = types.listOf of;
      default = [ ];
    };
in
{
  options = {
    assertions = list types.unspecified;
    warnings = list types.str;
    environment.etc = any;
    environment.systemPackages = list types.package;
    hardware.graphics.enable = mkOption {
      type = types.bool;
      default = false;
    };
    networking.firewall.allowedTCPPorts = list types.port;
    nixpkgs.pkgs = mkOption { type = types.unspecified; };
    services.udev.packages = list types.package;
    systemd = {
      packages = list types.package;
      tmpfiles.packages = list types.package;
      services = unit {
        wantedBy = words;
        serviceConfig = any;
        restartTriggers = list types.unspecified;
        reloadTriggers = list types.unspecified;
      };
      sockets = unit {
        wantedBy = words;
        listenStreams = words;
        socketConfig = any;
      };
    };
    users.groups = any;
    users.users = any;
    virtualisation = any;
  };
  config._module.args.pkgs = config.nixpkgs.pkgs;
}
