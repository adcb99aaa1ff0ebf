"""Runs `serve run` in this process, and says when the application is ready or why it will never be.

Serve's own command waits on without a word where an application has failed, and ends with status 0 whatever happened.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from goose_ray.cli.deployment_file import DeploymentFile
from goose_ray.cli.ready_text import ready_text

if TYPE_CHECKING:
    from ray.serve.schema import ApplicationStatusOverview

__all__ = ["CONTROLLER_SETTINGS", "reason_of", "run"]

# Serve's
_NAMESPACE = "serve"
_LOOK_EVERY_S = 0.5
# that Serve takes beside, to end a replica
_SLACK_S = 15.0
_CONNECT_TIMEOUT_S = 2.0
# Serve's controller reads them, which inherits them from here if Ray starts here.
CONTROLLER_SETTINGS = {
    # By default a replica that no longer answers is given the time of the longest answer to end by itself; what it was
    # answering waits as long.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    # By default ten seconds go by before it is missed that the aggregator has died.
    "RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_PERIOD_S": "2",
    # A proxy that has died is replaced after three checks, and nobody else listens: for half a minute by default.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
}


def run(file: Path, deployment: DeploymentFile, *, address: str | None) -> None:
    """Until SIGINT or SIGTERM; then what is being answered is answered first, as far as the deployment gives it time.
    `file` is what is served, `deployment` the same. Raises ClickException if it cannot be served.
    """
    import ray
    from ray.serve.scripts import cli

    for name, value in CONTROLLER_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        # as `serve run` would; here so that the handlers below are set after Ray's own
        context = ray.init(address=address, namespace=_NAMESPACE)
    except Exception as error:
        # Ray raises plain ones too, as where the machine is too busy for its processes to come up in time
        raise click.ClickException(f"no Ray to run on: {error}") from error
    watch = _Watch(deployment, dashboard=context.dashboard_url)
    before = {number: signal.signal(number, watch.interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        threading.Thread(target=watch.run, name="goose-watch", daemon=True).start()
        cli.main(["run", str(file)], prog_name="serve", standalone_mode=False)
    except (SystemExit, KeyboardInterrupt, click.Abort):
        # its end, for whatever reason, which more signals may have broken off
        watch.over.set()
        with contextlib.suppress(Exception, KeyboardInterrupt):
            ray.shutdown()
    finally:
        watch.over.set()
        for number, handler in before.items():
            signal.signal(number, handler)
    if watch.failure is not None:
        raise click.ClickException(watch.failure)
    if not watch.was_interrupted:
        raise click.ClickException("`serve run` has ended by itself: what it wrote above says why")
    _tell("Stopped.")


class _Watch:
    """Of one application, from a thread of its own. `dashboard`: HOST:PORT of Ray's, if there is one."""

    def __init__(self, deployment: DeploymentFile, *, dashboard: str | None) -> None:
        self._deployment = deployment
        self._dashboard = dashboard
        self.over = threading.Event()
        self.was_interrupted = False
        self.failure: str | None = None
        self._is_serving = False
        # Serve is, for good
        self._is_ending = False

    def interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        """The first time, and again at the end of what is being answered; whoever does not want to wait asks twice."""
        is_first, self.was_interrupted = not self.was_interrupted, True
        if not (is_first and self._is_serving):
            self._is_ending = True
            raise KeyboardInterrupt
        threading.Thread(target=self._finish, name="goose-finish", daemon=True).start()
        has_s = self._deployment.graceful_shutdown_s
        _tell(f"\nStopping: what is being answered has {has_s:g} s. Ctrl-C once more ends it at once.")

    def run(self) -> None:
        from ray import serve
        from ray.serve.schema import ApplicationStatus

        deployment = self._deployment
        while not self.over.wait(_LOOK_EVERY_S):
            if not self._is_listening():
                continue
            try:
                application = serve.status().applications.get(deployment.application)
            except Exception:
                # its controller is not there, or not yet again
                continue
            if self.was_interrupted:
                return
            if application is None:
                continue
            if application.status == ApplicationStatus.RUNNING:
                # Ray has set it where it has made a token for its own cluster
                has_token = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
                name, url = deployment.config.model_name, deployment.url
                has_keys = bool(deployment.config.api_keys_file or deployment.config.api_key_sha256)
                text = ready_text(name, url, dashboard=self._dashboard, has_token=has_token, has_keys=has_keys)
                self._is_serving = True
                _tell(f"\n{text}\n")
                return
            if application.status == ApplicationStatus.DEPLOY_FAILED:
                self.failure = f"it cannot be served: {reason_of(application)}"
                # wakes `serve run`, which then takes down what it has started
                os.kill(os.getpid(), signal.SIGINT)
                return

    def _finish(self) -> None:
        """Serve's own shutdown would begin with the proxy, and cut every connection."""
        from ray import serve

        name = self._deployment.application
        end_s = time.monotonic() + self._deployment.graceful_shutdown_s + _SLACK_S
        try:
            serve.delete(name, _blocking=False)
            while time.monotonic() < end_s and not self._is_over and name in serve.status().applications:
                self.over.wait(_LOOK_EVERY_S)
        except Exception as error:
            # also where Serve has ended meanwhile
            if not self._is_over:
                _tell(f"Not all was answered: {error}")
        finally:
            if not self._is_over:
                os.kill(os.getpid(), signal.SIGINT)

    @property
    def _is_over(self) -> bool:
        """Nobody waits any more for what is being answered."""
        return self._is_ending or self.over.is_set()

    def _is_listening(self) -> bool:
        """Serve's proxy, which comes after its controller: before that there is nobody to ask."""
        host = "127.0.0.1" if self._deployment.host in ("0.0.0.0", "::") else self._deployment.host
        try:
            with socket.create_connection((host, self._deployment.port), timeout=_CONNECT_TIMEOUT_S):
                return True
        except OSError:
            return False


def _tell(text: str) -> None:
    """Whoever listened may have gone."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def reason_of(application: "ApplicationStatusOverview") -> str:
    """Why its deployments failed, a line each: the last of what Serve says, where the exception of a replica stands."""
    failed = {
        name: deployment.message.strip()
        for name, deployment in application.deployments.items()
        if deployment.status in ("DEPLOY_FAILED", "UNHEALTHY")
    }
    reasons = [f"{name}: {message.splitlines()[-1]}" for name, message in failed.items() if message]
    return "\n".join(reasons) or application.message.strip()
