"""Values of the chart as users set them."""

from __future__ import annotations

from support.custom_resources import Manifest
from support.tree import ROOT

SERVERS = {"modelServers": {"matchLabels": {"llm-d.ai/guide": "x"}, "targetPorts": [{"number": 8000}]}}
ROUTER = {"router": SERVERS}
PICKER_FILE = (ROOT / "configs" / "tiered-v1.yaml").read_text()

SHAPES: dict[str, Manifest] = {
    "bare": ROUTER,
    "inferencepool chart": {
        "inferencePool": SERVERS | {"targetPorts": [{"number": 8000}, {"number": 8001}]},
        "inferenceExtension": {
            "replicas": 1, "failureMode": "FailClose", "pluginsConfigFile": "tiered.yaml",
            "pluginsCustomConfig": {"tiered.yaml": PICKER_FILE},
            "flags": {"v": 4, "zap-encoder": "json", "secure-serving": False},
            "env": [{"name": "A", "value": "b"}],
            "extraServicePorts": [{"name": "extra", "port": 81, "targetPort": 8081}],
            "monitoring": {"prometheus": {"enabled": True}},
        },
        "experimentalHttpRoute": {"enabled": True, "inferenceGatewayName": "g", "baseModel": "m"},
        "provider": {"name": "gke"},
    },
    "router chart": {
        "router": SERVERS | {
            "epp": {"replicas": 3, "pluginsConfigFile": "default-plugins.yaml", "podAnnotations": {"a": 1},
                    "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}},
                    "volumes": [{"name": "m", "emptyDir": {}}], "volumeMounts": [{"name": "m", "mountPath": "/models"}],
                    "flags": {"ha-enable-leader-election=false": "", "metrics-staleness-threshold": "2s"}},
            "monitoring": {
                "interval": "5s",
                "prometheus": {
                    "enabled": True,
                    "extraLabels": {"release": "p"},
                    "authorization": {"credentials": {"name": "s", "key": "k"}},
                },
            },
        },
        "httpRoute": {"create": True, "inferenceGatewayNamespace": "gateways"},
        "provider": {"name": "istio"},
    },
    "all active": {"router": SERVERS | {"epp": {"replicas": 3, "leaderElection": False}}, "networkPolicy": {"enabled": True}},
    "replicas by mesh": {"config": {"replicas": {"transport": "mesh"}}, "router": SERVERS | {"epp": {"replicas": 3}}},
    "replicas by valkey": {
        "config": {"replicas": {"transport": "valkey", "valkey": {"address": "valkey:6379", "username": "kvatlas"}}},
        "router": SERVERS | {"epp": {"replicas": 3}}, "replicaSecret": {"existingSecret": "valkey"},
    },
    "all that a gateway can have": {
        "router": SERVERS | {
            "epp": {"grpcHealthPort": 9004}, "inferenceObjectives": [{"name": "batch", "priority": -1}],
            "monitoring": {"provider": {"name": "gmp"}, "prometheus": {"enabled": True}},
        },
        "gateway": {"create": True}, "provider": {"name": "gke"},
        "httpRoute": {"create": True, "baseModel": "m", "headerMatches": [{"type": "Exact", "name": "team", "value": "a"}]},
    },
    "mesh": {
        "router": SERVERS, "gateway": {"create": True, "className": "mine"},
        "provider": {"name": "istio", "istio": {"destinationRule": {"trafficPolicy": {
            "connectionPool": {"http": {"http2MaxRequests": 9000}}}}}},
    },
    "beside another picker": {"router": {"inferencePool": {"existing": "theirs"}, "epp": {"replicas": 2}}},
    "standalone chart": {
        "inferencePool": SERVERS,
        "inferenceExtension": {
            "sidecar": {"enabled": True},
            "endpointsServer": {
                "createInferencePool": False, "endpointSelector": "app in (a, b),!canary", "targetPorts": "8000,8001"
            },
        },
    },
    "standalone": {"router": SERVERS | {"inferencePool": {"create": False}, "proxy": {"enabled": True}}, "networkPolicy": {"enabled": True}},
}  # fmt: skip
"""Values as users set them."""
