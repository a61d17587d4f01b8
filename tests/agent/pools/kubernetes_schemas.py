"""Strict schemas of every manifest that the agent sends.

Written by hand from the reference of the Kubernetes API (kubernetes.io/docs/reference/kubernetes-api, v1.34: Namespace
v1, ResourceQuota v1, Job batch/v1, PodSpec v1, ResourceClaim resource.k8s.io/v1): names and types of the fields that a
lease may need, and none beside them, so that a wrong name, level or type is refused as a server refuses it with
fieldValidation=Strict. What a server checks beyond form (names, CEL, immutable fields) is not in here.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer", "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}
NAME: Final[Schema] = {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"}
DNS_LABEL: Final[Schema] = {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}
QUANTITY: Final[Schema] = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"}
LABEL_VALUE: Final[Schema] = {
    "type": "string",
    "pattern": r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$",
}
QUALIFIED: Final = r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"


def strict(needed: tuple[str, ...] = (), **fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(needed), "additionalProperties": False}


def many(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def table(of: Schema) -> Schema:
    return {"type": "object", "propertyNames": {"pattern": QUALIFIED}, "additionalProperties": of}


def kind(group: str, name: str, spec: Schema | None) -> Schema:
    meta = strict(
        ("name",), name=NAME, namespace=DNS_LABEL, labels=table(LABEL_VALUE), annotations=table(TEXT)
    )
    fields: Schema = {"apiVersion": {"const": group}, "kind": {"const": name}, "metadata": meta}
    return strict(("apiVersion", "kind", "metadata"), **fields, **({"spec": spec} if spec else {}))


RESOURCES = strict(
    limits=table(QUANTITY),
    requests=table(QUANTITY),
    claims=many(strict(("name",), name=DNS_LABEL, request=TEXT)),
)
TOLERATION = strict(
    key=TEXT, operator={"enum": ["Exists", "Equal"]}, value=TEXT,
    effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]}, tolerationSeconds=NUMBER,
)  # fmt: skip
EXPRESSION = strict(
    ("key", "operator"), key=TEXT, values=many(TEXT),
    operator={"enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]},
)  # fmt: skip
AFFINITY = strict(
    nodeAffinity=strict(
        requiredDuringSchedulingIgnoredDuringExecution=strict(
            ("nodeSelectorTerms",), nodeSelectorTerms=many(strict(matchExpressions=many(EXPRESSION)))
        )
    )
)
DOWNWARD = strict(items=many(strict(("path",), path=TEXT, fieldRef=strict(("fieldPath",), fieldPath=TEXT))))
CONTAINER = strict(
    ("name", "image"), name=DNS_LABEL, image=TEXT, command=many(TEXT), args=many(TEXT), resources=RESOURCES,
    env=many(strict(("name",), name=TEXT, value=TEXT)),
    volumeMounts=many(strict(("name", "mountPath"), name=DNS_LABEL, mountPath=TEXT, readOnly=FLAG, subPath=TEXT)),
)  # fmt: skip
POD = strict(
    ("containers", "restartPolicy"), containers={**many(CONTAINER), "minItems": 1},
    # A Job's pods: Always is refused.
    restartPolicy={"enum": ["Never", "OnFailure"]},
    automountServiceAccountToken=FLAG, enableServiceLinks=FLAG, terminationGracePeriodSeconds=NUMBER,
    tolerations=many(TOLERATION), affinity=AFFINITY, nodeSelector=table(LABEL_VALUE), schedulerName=TEXT,
    resourceClaims=many(strict(("name",), name=DNS_LABEL, resourceClaimName=NAME, resourceClaimTemplateName=NAME)),
    volumes=many(strict(("name",), name=DNS_LABEL, downwardAPI=DOWNWARD)),
)  # fmt: skip
TEMPLATE = strict(("spec",), metadata=strict(labels=table(LABEL_VALUE), annotations=table(TEXT)), spec=POD)
JOB = strict(
    ("template",), template=TEMPLATE, backoffLimit=NUMBER, completions=NUMBER, parallelism=NUMBER,
    activeDeadlineSeconds={"type": "integer", "minimum": 1}, ttlSecondsAfterFinished=NUMBER, suspend=FLAG,
    podReplacementPolicy={"enum": ["Failed", "TerminatingOrFailed"]},
)  # fmt: skip
_ASKED = {
    "deviceClassName": NAME, "count": {"type": "integer", "minimum": 1, "maximum": 32},
    "allocationMode": {"enum": ["ExactCount", "All"]},
    "selectors": many(strict(("cel",), cel=strict(("expression",), expression={"type": "string", "maxLength": 10240}))),
    "capacity": strict(requests=table(QUANTITY)),
}  # fmt: skip
REQUEST = strict(
    ("name",), name=DNS_LABEL, exactly=strict(("deviceClassName",), **_ASKED),
    firstAvailable={**many(strict(("name", "deviceClassName"), name=DNS_LABEL, **_ASKED)), "maxItems": 8},
)  # fmt: skip
CLAIM = strict(("devices",), devices=strict(requests={**many(REQUEST), "minItems": 1, "maxItems": 32}))

SCHEMAS: Final[dict[str, Schema]] = {
    "namespaces": kind("v1", "Namespace", None),
    "resourcequotas": kind("v1", "ResourceQuota", strict(hard=table(QUANTITY))),
    "jobs": kind("batch/v1", "Job", JOB),
    "resourceclaims": kind("resource.k8s.io/v1", "ResourceClaim", CLAIM),
}
