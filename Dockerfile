# A server of one run, or several:
#   docker build -t infolm .
#   docker run --rm -p 127.0.0.1:8000:8000 --read-only --tmpfs /tmp --cap-drop ALL \
#       -v "$PWD/runs/demo:/runs/demo:ro" infolm /runs/demo
# The wheel is made where there is a compiler, and installed where there is none.
FROM python:3.12 AS wheel
WORKDIR /opt/infolm
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src ./src
RUN INFOLM_REQUIRE_NATIVE=1 pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
WORKDIR /opt/infolm
COPY constraints.txt ./
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --constraint constraints.txt "$(echo /wheels/*.whl)[serve]" \
    && useradd --system --uid 10001 --no-create-home infolm

USER 10001
ENV INFOLM_CACHE=/tmp/infolm \
    PYTHONDONTWRITEBYTECODE=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz')"]
# Inside a container 127.0.0.1 is the container's own: the port is published by `docker run`.
ENTRYPOINT ["infolm", "serve", "--host", "0.0.0.0"]
CMD ["/runs/run"]
