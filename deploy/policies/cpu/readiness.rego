# Who may be ready: an executor that runs every kernel family on the CPU backend.
#
# Asked as data.deltagate.readiness.decision over
#   input.snapshot   what the executor reported: phase, fingerprint, model, device, and bindings by family name
#   input.age_ms     age of its last heartbeat, and input.lease_ms how long that counts
#   input.device     the snapshot's device
# Everything that is not said to be right is a reason to refuse.
package deltagate.readiness

import rego.v1

default decision := {"allow": false, "reasons": ["the bundle reached no decision"]}

decision := {"allow": count(reasons) == 0, "reasons": sort(reasons)}

families := {
	"attention", "conv1d", "delta_rule", "embed", "gated_norm",
	"launch", "mlp", "norm", "projection", "readout",
}

reasons contains "no fresh heartbeat" if not fresh

fresh if {
	is_number(input.age_ms)
	is_number(input.lease_ms)
	input.age_ms >= 0
	input.age_ms < input.lease_ms
}

reasons contains "phase is neither awaiting_policy nor ready" if {
	not input.snapshot.phase in {"awaiting_policy", "ready"}
}

reasons contains "fingerprint is missing" if not given(input.snapshot.fingerprint)

reasons contains "endpoint is missing" if not given(input.snapshot.endpoint)

reasons contains "model is not loaded" if not given(input.snapshot.model.digest)

given(text) if {
	is_string(text)
	text != ""
}

reasons contains "device is not a cpu" if not input.device.kind == "cpu"

reasons contains reason if {
	some family in families
	reason := sprintf("kernel %s %s", [family, fault(family)])
}

reasons contains "a kernel family is not known to this bundle" if {
	some family, _ in input.snapshot.bindings
	not family in families
}

# What is wrong with a family; undefined when nothing is.
fault(family) := "is not reported" if {
	not input.snapshot.bindings[family]
} else := "is missing" if {
	input.snapshot.bindings[family].state == "missing"
} else := "failed its probe" if {
	input.snapshot.bindings[family].state == "probe_failed"
} else := "is not bound" if {
	not input.snapshot.bindings[family].state == "bound"
} else := "is bound without a passed probe" if {
	not input.snapshot.bindings[family].probe_passed == true
} else := "is not bound to a cpu backend" if {
	not cpu_backend(input.snapshot.bindings[family].backend)
}

cpu_backend(backend) if backend == "cpu"

cpu_backend(backend) if startswith(backend, "cpu.")
