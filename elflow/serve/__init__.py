"""HTTP service for densities: `elflow serve`, and the page of `elflow explore`.

It needs FastAPI and uvicorn: `pip install "elflow[serve]"`. `create_app` returns an ASGI application, for servers other
than `run`.
"""

from elflow.serve.app import create_app
from elflow.serve.limits import Limits
from elflow.serve.models import ServedModel, load_models
from elflow.serve.server import run

__all__ = ["Limits", "ServedModel", "create_app", "load_models", "run"]
