# The program and nothing else, on Debian's C library. It needs the capabilities NET_ADMIN and NET_RAW
# and the host's network, and therefore root in the container. SYS_NICE is good to have.
FROM docker.io/library/rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --locked --release --bin harvester-cloud-provider

FROM gcr.io/distroless/cc-debian12
COPY --from=build /src/target/release/harvester-cloud-provider /usr/local/bin/harvester-cloud-provider
ENTRYPOINT ["/usr/local/bin/harvester-cloud-provider"]
