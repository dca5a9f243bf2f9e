//! Telling systemd how far we are (`sd_notify`): a service of `Type=notify` counts as started when clients are served.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells whoever started us; nothing happens where nobody wants to know.
pub(super) fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&socket),
    };
    if let Err(error) = address.and_then(|address| send(&address, state)) {
        tracing::warn!(socket = %socket.display(), %error, "cannot tell systemd");
    }
}

fn send(address: &SocketAddr, state: &str) -> io::Result<()> {
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), address).map(drop)
}
