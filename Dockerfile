# The service of elflow as a small image, for a CPU. Build it from the root of the repository, and mount the models:
#   docker build -t elflow-serve .
#   docker run --read-only --tmpfs /tmp -p 127.0.0.1:8765:8765 -v "$PWD/demo:/models:ro" elflow-serve /models/model.elf

FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/elflow
WORKDIR /source
COPY pyproject.toml constraints.txt CMakeLists.txt README.md LICENSE ./
COPY elflow elflow
# PyTorch for CPUs: the one of PyPI brings gigabytes of CUDA.
RUN /opt/elflow/bin/pip install --no-cache-dir --constraint constraints.txt \
      --extra-index-url https://download.pytorch.org/whl/cpu "torch==2.13.0+cpu" \
    && /opt/elflow/bin/pip install --no-cache-dir --constraint constraints.txt ".[serve]" \
    && find /opt/elflow -name "__pycache__" -prune -exec rm -rf {} +

FROM python:3.12-slim
# OpenMP, which torch and the native kernel use.
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 elflow
COPY --from=build /opt/elflow /opt/elflow
USER elflow
ENV PATH=/opt/elflow/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 MPLCONFIGDIR=/tmp
EXPOSE 8765
HEALTHCHECK --start-period=30s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8765/healthz', timeout=3)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["elflow", "serve", "--host", "0.0.0.0", "--port", "8765"]
CMD ["/models/model.elf"]
