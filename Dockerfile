# A server of one run, or several:
#   docker build -t infolm .
#   docker run --rm -p 127.0.0.1:8000:8000 --read-only --tmpfs /tmp --cap-drop ALL \
#       -v "$PWD/runs/demo:/runs/demo:ro" infolm /runs/demo
FROM python:3.12-slim

WORKDIR /opt/infolm
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --constraint constraints.txt '.[serve]' \
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
