# syntax=docker/dockerfile:1
# The product's image: three programs, the libraries they name, certificate authorities; no shell, no package manager, not root.
# tests/images/pack.sh packs the same without Docker.

FROM rust:1.95.0-bookworm AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# The image's own toolchain, without the lint tools that rust-toolchain.toml asks for.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /source
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --release --locked --package fanout-operator --package fanout-relay --package fanout-consumers \
    && mkdir /image \
    && for program in fanout-operator fanout-relay fanout-consumers; do \
         install --strip target/release/$program /image/$program \
         && ldd /image/$program | grep -oE '/[^ ]+' || exit 1; \
       done | sort -u | xargs cp --parents --dereference --target-directory=/image \
    && cp --parents /etc/ssl/certs/ca-certificates.crt /image \
    && echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >/image/etc/passwd \
    && echo 'nonroot:x:65532:' >/image/etc/group \
    && echo 'hosts: files dns' >/image/etc/nsswitch.conf

FROM scratch
COPY --from=build /image/ /
USER 65532:65532
ENTRYPOINT ["/fanout-operator"]
