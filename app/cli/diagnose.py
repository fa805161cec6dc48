"""The diagnosis of a configuration file, without a running process."""

from __future__ import annotations

import time
from pathlib import Path

from ...api.doctor.check import examine
from ...api.doctor.checks import CHECKS
from ...api.doctor.deployment import Deployment
from ...api.rest.doctor import diagnosis
from ...api.rest.doctor_models import DoctorOut
from ...routing.plan.config_files import ConfigFiles


def diagnose(file: Path) -> DoctorOut:
    """Run the checks that need no process; files that the configuration names are read.

    Raises:
        ConfigError: the file is not valid.
    """
    config = ConfigFiles(file).load().config
    return diagnosis(examine(CHECKS, Deployment(config=config, wall=time.time())))
