//! Listening sockets: bound before anything is announced, then accepting for ever.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;

use super::Server;
use super::alarms::Alarm;
use super::connection::serve;
use crate::config::Listener;

/// Connections that may wait to be accepted: enough for a burst of clients that all reconnect at once.
const BACKLOG: u32 = 1024;
/// How often a free port is looked for that all addresses can share.
const FREE_PORT_TRIES: u32 = 20;

/// Binds every address. Those with port 0 share the port that the first one gets.
///
/// # Errors
/// The address that cannot be bound, and why.
pub fn bind_all(listeners: &[Listener]) -> Result<Vec<TcpListener>, (SocketAddr, io::Error)> {
    let mut tries = 0;
    loop {
        tries += 1;
        match try_bind_all(listeners) {
            Err((address, error))
                if address.port() == 0 && error.kind() == io::ErrorKind::AddrInUse && tries < FREE_PORT_TRIES => {}
            result => return result,
        }
    }
}

fn try_bind_all(listeners: &[Listener]) -> Result<Vec<TcpListener>, (SocketAddr, io::Error)> {
    let mut bound: Vec<TcpListener> = Vec::new();
    let mut free_port = None;
    for listener in listeners {
        let mut address = listener.address;
        if let (0, Some(port)) = (address.port(), free_port) {
            address.set_port(port);
        }
        match bind(address) {
            Ok(socket) => {
                if listener.address.port() == 0 && free_port.is_none() {
                    free_port = socket.local_addr().ok().map(|address| address.port());
                }
                bound.push(socket);
            }
            // Nobody asked for it, and the machine does not have it. A port in use is another matter.
            Err(error) if !listener.required && error.kind() != io::ErrorKind::AddrInUse => {
                tracing::debug!(%address, %error, "address not available, going on without it");
            }
            Err(error) => return Err((listener.address, error)),
        }
    }
    Ok(bound)
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match bind_exactly(address) {
        // All addresses, on a machine without IPv6: all that it has.
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != io::ErrorKind::AddrInUse => {
            bind_exactly((Ipv4Addr::UNSPECIFIED, address.port()).into()).map_err(|_| error)
        }
        result => result,
    }
}

fn bind_exactly(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts until the task is dropped; connections end with it.
pub async fn accept(server: Arc<Server>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        // Finished ones leave their results behind.
        while connections.try_join_next().is_some() {}
        server.alarms().cleared(Alarm::FileDescriptors).await;
        match listener.accept().await {
            Ok((stream, peer)) => {
                let local = stream.local_addr().unwrap_or(peer);
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
                }
                connections.spawn(serve(server.clone(), stream, peer, local));
            }
            Err(error) => {
                // Out of file descriptors, most likely: those that are open go on.
                tracing::error!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
