# Serves the exported model in /model, with its page:
#   docker build -t bert4rec-tf . && docker run --stop-timeout=35 -p 8501:8501 -v "$PWD/runs/own/saved_model:/model:ro" bert4rec-tf
# Everything else is there too:
#   docker run --user "$(id -u)" -e HOME=/tmp -v "$PWD:/work" -w /work --entrypoint python bert4rec-tf -m bert4rec_tf.run --interactions=ratings.csv
FROM python:3.12-slim

WORKDIR /src
COPY setup.py pyproject.toml README.md LICENSE ./
COPY bert4rec_tf bert4rec_tf
RUN pip install --no-cache-dir '.[serve]' && rm -rf /src/*

RUN useradd --create-home bert4rec
USER bert4rec
WORKDIR /home/bert4rec

EXPOSE 8501
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8501/healthz', timeout=2)"]
ENTRYPOINT ["bert4rec"]
CMD ["serve", "--model=/model", "--host=0.0.0.0"]
