FROM python:3.13-slim

# OSMesa renders videos without a screen.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libosmesa6 \
    && rm -rf /var/lib/apt/lists/*
ENV MUJOCO_GL=osmesa

COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip install --no-cache-dir "/source[report,tensorboard]" && rm -r /source

# Runs are written to /data/runs: mount a folder there to keep them.
RUN useradd --create-home pombu && mkdir /data && chown pombu /data
USER pombu
WORKDIR /data
ENTRYPOINT ["pombu"]
CMD ["--help"]
