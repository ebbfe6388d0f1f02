"""Metadata, extras and the `bert4rec` command."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
DOCS = ["mkdocs-material>=9.5"]
EXPORT = ["ai-edge-litert>=2.1", "onnx>=1.17", "onnxruntime>=1.20", "tf2onnx>=1.17"]
PLOTS = ["matplotlib>=3.9"]
REPORT = ["jinja2>=3.1"]
SPARK = ["pyspark>=4,<5"]
STORES = ["fsspec>=2024.10"]
SERVE = ["aiohttp>=3.11", "orjson>=3.10", "prometheus-client>=0.21"]
TEST = [
    "axe-playwright-python>=0.1",
    "build>=1.2.1",
    "codespell>=2.3",
    "hypothesis>=6.130",
    "ir-measures>=0.3.7",
    "ipykernel>=6.29",
    "mypy>=1.14",
    "nbclient>=0.10",
    "playwright>=1.49",
    "pytest>=8.0.1",
    "pytest-xdist>=3.6.1",
    "ruff>=0.9",
    "twine>=6",
]
TEST_STORES = ["flask>=3", "flask-cors>=5", "moto[s3]>=5", "s3fs>=2024.10"]
TUNE = ["optuna>=4.1"]


def description() -> str:
    """Returns the README for a package index, where relative links and pictures lead nowhere: their texts stay."""
    text = re.sub(r"!\[[^]]*\]\((?!http)[^)]*\)\n*", "", (HERE / "README.md").read_text(encoding="utf-8"))
    return re.sub(r"\[([^]]*)\]\((?!http)[^)]*\)", r"\1", text)


VERSION = re.search(r'__version__ = "(.+?)"', (HERE / "bert4rec_tf" / "__init__.py").read_text()).group(1)

setup(
    name="bert4rec-tf",
    version=VERSION,
    description="BERT4Rec in TensorFlow/Keras, faithful to the authors' original",
    long_description=description(),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    packages=find_packages(include=["bert4rec_tf", "bert4rec_tf.*"]),
    package_data={"bert4rec_tf": ["config/paper.json", "py.typed", "serving/http/page/*"]},
    python_requires=">=3.11",
    install_requires=[
        "absl-py>=2.1",
        "filelock>=3.20.4",
        "keras>=3.13",
        "numpy>=2.2",
        "pandas>=2.2.3",
        "pooch>=1.8",
        "pyarrow>=25",
        "requests>=2.32.2",
        "scipy>=1.16",
        "tensorboard>=2.19",
        "tensorflow>=2.21,<2.22",
        "tqdm>=4.66.1",
        "wrapt>=1.16",
    ],
    extras_require={
        "cuda": ["tensorflow[and-cuda]>=2.21,<2.22"],
        "docs": DOCS,
        "export": EXPORT,
        "plots": PLOTS,
        "report": REPORT,
        "serve": SERVE,
        "spark": SPARK,
        "stores": STORES,
        "test": [*TEST, *DOCS, *EXPORT, *PLOTS, *REPORT, *SERVE, *STORES, *TUNE],
        "test-stores": TEST_STORES,
        "tune": TUNE,
    },
    entry_points={"console_scripts": ["bert4rec=bert4rec_tf.commands.main:main"]},
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
