//! What tools see of the HTTP API, a test per rule of management-behaviour's sections.

#[path = "management/access.rs"]
mod access;
#[path = "support/broker.rs"]
#[allow(dead_code)]
mod broker;
#[path = "support/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "management/contents.rs"]
mod contents;
#[path = "management/ctl.rs"]
mod ctl;
#[path = "support/http.rs"]
#[allow(dead_code)]
mod http;
#[path = "management/rules.rs"]
mod rules;
#[path = "management/views.rs"]
mod views;
