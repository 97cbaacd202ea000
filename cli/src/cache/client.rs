//! Requests to a running daemon.

use std::path::Path;

use justitia_cache::serve::{ControlError, ControlRequest, default_control_path, send_request};

/// Sends a request to the daemon behind the given control socket, or the default one.
pub(super) fn send(
    control: Option<&Path>,
    request: &ControlRequest,
) -> Result<serde_json::Value, ControlError> {
    let control = control.map_or_else(default_control_path, Path::to_owned);
    send_request(&control, request)
}
