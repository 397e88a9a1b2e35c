//! What every service shares: config, telemetry, status mapping, deadlines, health, drain, supervision
