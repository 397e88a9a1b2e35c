# Who may be ready: an executor on a listed GPU whose kernels are the ones named below.
#
# data.json: config.devices lists what the operator allows, by name or id (none as shipped: list yours);
# config.allow_native lets conv1d run on the project's own kernel; config.backends names backends of the other families.
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

reasons contains "device is not a cuda device" if not input.device.kind == "cuda"

reasons contains "device is not one that the operator listed" if not device_listed

device_listed if {
	given(input.device.name)
	input.device.name in data.config.devices.names
}

device_listed if {
	given(input.device.id)
	input.device.id in data.config.devices.ids
}

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
} else := "is bound to a backend that this bundle does not allow" if {
	not backend_allowed(family, input.snapshot.bindings[family].backend)
}

# These four are rules; data.json cannot loosen them.
backend_allowed("conv1d", backend) if backend == "causal_conv1d"

backend_allowed("conv1d", backend) if {
	data.config.allow_native == true
	matches(backend, ["native", "native.*"])
}

backend_allowed("delta_rule", backend) if matches(backend, ["flashinfer.*", "fla-triton"])

backend_allowed("attention", backend) if matches(backend, ["flashinfer.*"])

backend_allowed("launch", backend) if backend in {"cuda-graph", "stream"}

backend_allowed(family, backend) if {
	not family in {"attention", "conv1d", "delta_rule", "launch"}
	not forbidden(backend)
	matches(backend, data.config.backends[family])
}

# Neither the oracle nor the CPU serves on a GPU, whatever data.json says.
forbidden(backend) if matches(backend, ["reference", "reference.*", "cpu", "cpu.*"])

matches(backend, patterns) if backend in patterns

matches(backend, patterns) if {
	some pattern in patterns
	endswith(pattern, ".*")
	startswith(backend, trim_suffix(pattern, "*"))
	backend != trim_suffix(pattern, "*")
}
