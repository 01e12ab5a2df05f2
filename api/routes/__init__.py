"""Routes: the HTTP face of the service."""

from api.routes import exports, health, judging, plans, profiles

ROUTERS = (exports.router, plans.router, profiles.router, judging.router, health.router)
