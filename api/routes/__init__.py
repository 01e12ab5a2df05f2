"""Routes: the HTTP face of the service."""

from api.routes import health, judging, plans, profiles

ROUTERS = (plans.router, profiles.router, judging.router, health.router)
