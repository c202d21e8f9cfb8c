"""Command `orind-openpi`."""

import argparse
import logging
import os
import sys
from typing import Dict, List, Optional

from ..client import Client
from ..errors import OrindError
from .policy import LoopPolicy, NetworkPolicy, Policy, parse_shape
from .server import Server


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="orind-openpi", description="Serve a control loop or an ONNX policy of orind to OpenPI's clients.")
    policy = parser.add_mutually_exclusive_group(required=True)
    policy.add_argument("--loop", metavar="NAME", help="a control loop of the daemon")
    policy.add_argument("--model", metavar="FILE", help="an ONNX file, or a name of the models directory")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1,12",
                        help="shape of an input of --model, once for each; an extent 0 fits any")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=KEY",
                        help="key of the observation for an input, such as state=observation/state")
    parser.add_argument("--output", action="append", default=[], metavar="NAME=KEY",
                        help="key of the answer for an output, such as action=actions")
    parser.add_argument("--backend", help="device for --model: auto, cpu, nv, cuda")
    parser.add_argument("--daemon", metavar="ADDRESS", help="socket or HOST:PORT of the daemon [default: as orinctl]")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [default: %(default)s]")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on [default: %(default)s]")
    parser.add_argument("--key-file", metavar="FILE", help="file with the key that clients must send [$OPENPI_API_KEY]")
    parser.add_argument("--deadline", type=float, default=10.0, metavar="S", help="limit of an inference in seconds")
    parser.add_argument("--max-message", type=int, default=16, metavar="MIB", help="largest message in MiB")
    parser.add_argument("--max-connections", type=int, default=8, metavar="N", help="clients at once")
    parser.add_argument("--quiet", action="store_true", help="log warnings only")
    return parser


def _names(pairs: List[str], option: str) -> Dict[str, str]:
    names = {}
    for pair in pairs:
        name, separator, key = pair.partition("=")
        if not separator or not name or not key:
            raise OrindError(f"{option} {pair}: write NAME=KEY")
        names[name] = key
    return names


def _key(path: Optional[str]) -> Optional[str]:
    if path is None:
        return os.environ.get("OPENPI_API_KEY") or None
    with open(path, encoding="utf-8") as file:
        key = file.read().strip()
    if not key:
        raise OrindError(f"{path} has no key")
    return key


def _policy(options: argparse.Namespace) -> Policy:
    inputs, outputs = _names(options.input, "--input"), _names(options.output, "--output")
    client = Client(options.daemon)
    if options.loop:
        return LoopPolicy(client.control_loop(options.loop), inputs, outputs)
    if not options.shape:
        raise OrindError("--model needs the shape of each input: --shape observation=1,12 "
                         "(`orinctl run FILE` lists the inputs)")
    shapes = dict(map(parse_shape, options.shape))
    return NetworkPolicy(client, options.model, shapes, options.backend, inputs, outputs)


def main(arguments: Optional[List[str]] = None) -> None:
    """Serves until it is interrupted."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING if options.quiet else logging.INFO, format="%(message)s")
    try:
        with Server(_policy(options), options.host, options.port, key=_key(options.key_file), deadline=options.deadline,
                    max_message=options.max_message << 20, max_connections=options.max_connections) as server:
            logging.getLogger("orind.openpi").info("listening on ws://%s:%d", *server.address)
            server.serve_forever()
    except KeyboardInterrupt:
        pass
    except (OrindError, OSError, ValueError) as error:
        sys.exit(f"orind-openpi: {error}")


if __name__ == "__main__":
    main()
