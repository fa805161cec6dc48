# kvatlas as an image: the wheel and its C++ core are built in one stage, and only what runs is in the other.
#   docker build --pull -t REGISTRY/kvatlas:0.1.0 .
# The tag of Python names no patch release: each build with --pull has the newest one and the fixes of Debian, libnghttp2 included.
# So build again at least monthly, and for a fixed base: --build-arg PYTHON=3.12-slim-trixie@sha256:DIGEST.
ARG PYTHON=3.12-slim-trixie

FROM python:${PYTHON} AS build
# The suite keeps one version of a package, so a pinned one would be gone with the next mend.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnghttp2-14 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN python -m venv /opt/kvatlas \
    && /opt/kvatlas/bin/pip install --no-cache-dir --constraint constraints.txt '.[otlp-http]' \
    && /opt/kvatlas/bin/python -c "import kvatlas.events._native, kvatlas.indexer._native, kvatlas.scorers._native, kvatlas.api.http2._native, kvatlas.api.extproc._native, kvatlas.tokenization.encoding._native"

FROM python:${PYTHON}
COPY --from=build /opt/kvatlas /opt/kvatlas
# It carries ext-proc.
COPY --from=build /usr/lib/*/libnghttp2.so.14 /usr/lib/
ENV PATH=/opt/kvatlas/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that runAsNonRoot can be checked. Nothing is written but to /tmp, and there little.
USER 65532:65532
# ext-proc, health, REST, metrics
EXPOSE 9002 9003 8080 9090
ENTRYPOINT ["kvatlas", "serve"]
