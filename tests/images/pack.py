#!/usr/bin/env python3
"""Packs a container image as a docker-archive without a container engine: one layer, no shell, a non-root user, the same bytes for the same input.

The archive is what `docker load`, `kind load image-archive`, `minikube image load` and `ctr images import` take. Unless told
otherwise the tag is derived from the content: a changed image has another name, and a cluster never runs an old one by mistake.
Prints the image's reference and the archive's path.
"""

import argparse
import fnmatch
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time

NOBODY = 65532  # the uid of "nonroot" in distroless images
CA_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def main():
    options = arguments()
    entries = collect(options)
    os.makedirs(options.folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix=".pack.") as work:
        layer = os.path.join(work, "layer.tar")
        write_layer(layer, entries)
        config = json.dumps(image_config(options, digest_of(layer)), sort_keys=True).encode()
        digest = hashlib.sha256(config).hexdigest()
        reference = f"{options.name}:{options.tag or digest[:12]}"
        base = options.name.rsplit("/", 1)[-1]
        archive = os.path.join(options.folder, f"{base}-{digest[:12]}.tar")
        if not os.path.exists(archive):
            write_archive(os.path.join(work, "image.tar"), layer, config, digest, reference)
            os.rename(os.path.join(work, "image.tar"), archive)
            remove_old(options.folder, base, archive)
    os.utime(archive)
    print(reference, archive)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, help="where the archive goes")
    parser.add_argument("--name", required=True, help="the image's name without tag: localhost/NAME")
    parser.add_argument("--tag", help="instead of the content's hash")
    parser.add_argument("--binary", action="append", default=[], metavar="SOURCE:TARGET",
                        help="a program, packed stripped, with the shared libraries that ldd names")
    parser.add_argument("--file", action="append", default=[], metavar="SOURCE:TARGET",
                        help="a file as it is; if it is a program, with its shared libraries")
    parser.add_argument("--tree", action="append", default=[], metavar="SOURCE:TARGET", help="the same for a folder's files; links are followed")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="names in the folders of --tree that are left out")
    parser.add_argument("--ca-certificates", action="store_true", help="the machine's public certificate authorities, for TLS to public addresses")
    parser.add_argument("--entrypoint", type=json.loads, default=None, help="a JSON list")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args()


def collect(options):
    """Everything the layer holds: target path -> (source path or bytes, mode)."""
    entries = {
        "etc/passwd": (f"root:x:0:0:root:/:/sbin/nologin\nnonroot:x:{NOBODY}:{NOBODY}:nonroot:/:/sbin/nologin\n".encode(), 0o644),
        "etc/group": (f"root:x:0:\nnonroot:x:{NOBODY}:\n".encode(), 0o644),
        # Without it glibc asks DNS before /etc/hosts.
        "etc/nsswitch.conf": (b"passwd: files\ngroup: files\nhosts: files dns\n", 0o644),
    }
    programs = []
    for source, target in map(split, options.binary):
        entries[target] = (stripped(source), 0o755)
        programs.append(source)
    files = list(map(split, options.file))
    for source, target in map(split, options.tree):
        files += tree(source, target, options.exclude)
    for path, target in files:
        entries[target] = (path, 0o755 if os.access(path, os.X_OK) else 0o644)
        if is_elf(path):
            programs.append(path)
    packed = {os.path.realpath(source) for source, _ in entries.values() if isinstance(source, str)}
    for library, path in sorted(libraries(programs, {os.path.basename(path) for path in packed}).items()):
        if os.path.realpath(path) not in packed:
            entries.setdefault(library.lstrip("/"), (path, 0o755))
    if options.ca_certificates:
        if not os.path.exists(CA_CERTIFICATES):
            sys.exit(f"error: {CA_CERTIFICATES} is missing (Debian: apt-get install ca-certificates)")
        entries[CA_CERTIFICATES.lstrip("/")] = (CA_CERTIFICATES, 0o644)
    return entries


def split(pair):
    source, target = pair.split(":")
    if not os.path.exists(source):
        sys.exit(f"error: {source} does not exist")
    return source, target.lstrip("/")


def tree(source, target, excluded):
    for folder, folders, names in os.walk(source, followlinks=True):
        wanted = lambda name: not any(fnmatch.fnmatch(name, pattern) for pattern in excluded)
        folders[:] = filter(wanted, folders)
        for name in filter(wanted, names):
            path = os.path.join(folder, name)
            if os.path.isfile(path):  # and no link to nowhere
                yield path, os.path.join(target, os.path.relpath(path, source))


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def stripped(path):
    """The program without symbols and debug information, which is most of a test build."""
    with tempfile.NamedTemporaryFile() as copy:
        subprocess.run(["strip", "--strip-all", "-o", copy.name, path], check=True)
        with open(copy.name, "rb") as file:
            return file.read()


def libraries(programs, packed):
    """The shared libraries of the programs and the loader, by the path the programs look for them; not those already packed by name."""
    found = {}
    for program in programs:
        answer = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        if answer.returncode != 0:  # a static program
            continue
        for line in answer.stdout.splitlines():
            if "not found" in line and line.split()[0] not in packed:
                sys.exit(f"error: {program} needs a library that is not on this machine: {line.strip()}")
            path = re.search(r"(/\S+) \(0x", line)
            if path:
                found[path.group(1)] = os.path.realpath(path.group(1))
    return found


def write_layer(path, entries):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as layer:
        folders = set()
        for target in sorted(entries):
            parts = target.split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                folder = "/".join(parts[:depth])
                if folder not in folders:
                    folders.add(folder)
                    layer.addfile(header(folder, 0o755, kind=tarfile.DIRTYPE))
            source, mode = entries[target]
            if isinstance(source, bytes):
                layer.addfile(header(target, mode, len(source)), io.BytesIO(source))
            else:
                with open(source, "rb") as file:
                    layer.addfile(header(target, mode, os.fstat(file.fileno()).st_size), file)


def header(name, mode, size=0, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.mode, info.size, info.type = mode, size, kind
    info.mtime = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    return info


def digest_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def image_config(options, layer_digest):
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0"))))
    return {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "created": created,
        "config": {
            "Entrypoint": options.entrypoint,
            "Env": options.env,
            "User": f"{NOBODY}:{NOBODY}",
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        "history": [{"created": created, "created_by": "pack.py"}],
    }


def write_archive(path, layer, config, digest, reference):
    manifest = json.dumps([{"Config": f"{digest}.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path, "w") as archive:
        archive.addfile(header(f"{digest}.json", 0o644, len(config)), io.BytesIO(config))
        with open(layer, "rb") as file:
            archive.addfile(header("layer.tar", 0o644, os.path.getsize(layer)), file)
        archive.addfile(header("manifest.json", 0o644, len(manifest)), io.BytesIO(manifest))


def remove_old(folder, base, keep):
    """Archives of the same image that nothing used for an hour; younger ones may be in use by another run."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if re.fullmatch(re.escape(base) + r"-[0-9a-f]{12}\.tar", name) and path != keep and os.path.getmtime(path) < time.time() - 3600:
            os.remove(path)


main()
