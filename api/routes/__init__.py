"""Routes: the HTTP face of the service."""

from api.routes import exports, health, judging, plans, profiles, sweeps

ROUTERS = (exports.router, plans.router, profiles.router, sweeps.router, judging.router, health.router)
