# A drop-in for the image `rabbitmq`: the same ports, folders, variables and commands, on an empty base.
#   docker build -t leveret .
#   docker buildx build --platform linux/amd64,linux/arm64 -t leveret .

FROM rust:1-alpine AS build
RUN apk add --no-cache musl-dev busybox-static
WORKDIR /src
COPY . .
RUN CARGO_PROFILE_RELEASE_STRIP=debuginfo cargo build --release --locked --bin leveret \
  && sh packaging/rootfs /rootfs target/release/leveret /bin/busybox.static

FROM scratch
COPY --from=build /rootfs /
ENV PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin \
  HOME=/var/lib/rabbitmq \
  LEVERET_DEFAULTS=/usr/share/leveret/container.conf \
  RABBITMQ_CONFIG_FILE=/etc/rabbitmq/rabbitmq.conf \
  RABBITMQ_CONFIG_FILES=/etc/rabbitmq/conf.d
VOLUME /var/lib/rabbitmq
# What it listens on with its own settings, and nothing else: some CI systems wait for every port that is exposed.
EXPOSE 5672 15672 15692
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["rabbitmq-server"]
