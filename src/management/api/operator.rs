//! What only the local operator may ask for, through the admin socket.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;

use crate::management::caller::Cx;
use crate::management::error::{Answer, ApiError};
use crate::management::input::Input;
use crate::management::list;

fn needs_operator(cx: &Cx) -> Result<(), ApiError> {
    if Arc::ptr_eq(&cx.user, &cx.server().operator) { Ok(()) } else { Err(ApiError::not_found()) }
}

/// Would this name and password log in?
pub async fn authenticate(cx: Cx, input: Input) -> Answer {
    needs_operator(&cx)?;
    let text = |key| Ok::<_, ApiError>(input.text(key)?.unwrap_or_default());
    let peer = SocketAddr::from(([127, 0, 0, 1], 0));
    match cx.server().log_in(text("username")?, text("password")?, peer) {
        Ok(_) => list::ok(&json!({"ok": true})),
        Err(_) => Err(ApiError::login_failed()),
    }
}

/// Closes a connection, by its name or by what the tools show as its process.
pub async fn close_connection(cx: Cx, input: Input) -> Answer {
    needs_operator(&cx)?;
    input.needs(&["name", "reason"])?;
    let text = |key| Ok::<_, ApiError>(input.text(key)?.unwrap_or_default());
    let name = text("name")?.trim_start_matches('<').trim_end_matches('>').replace(' ', "");
    let (vhost, key) = cx.server().find_connection(&name).ok_or_else(ApiError::not_found)?;
    if cx.server().close_connection(&vhost, key, text("reason")?) { list::done() } else { Err(ApiError::not_found()) }
}

/// Stops the broker as SIGTERM does.
pub async fn stop(cx: Cx) -> Answer {
    needs_operator(&cx)?;
    cx.server().stop.notify_one();
    list::done()
}
