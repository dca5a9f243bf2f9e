//! The admin socket: the API for the command line tools of this machine, without a password. Whoever may open it is
//! whoever may read the broker's files; its folder is for its owner only.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Extension;
use tokio::net::UnixListener;

use super::caller::Operator;
use super::{Management, routes};
use crate::config::Config;

/// Where the socket may be, the likeliest first. `port` is that of AMQP.
pub fn socket_paths(config: &Config, port: u16) -> Vec<PathBuf> {
    if let Some(path) = &config.admin_socket {
        return vec![path.clone()];
    }
    let own = config.data_dir.iter().map(|dir| dir.join("admin").join("socket"));
    let user = std::fs::metadata("/proc/self").map_or(0, |process| process.uid());
    let shared = std::env::temp_dir().join(format!("leveret-{user}")).join(format!("{port}.socket"));
    own.chain([shared]).collect()
}

/// The socket; its file goes with it.
pub struct AdminSocket {
    listener: Option<UnixListener>,
    path: PathBuf,
}

impl AdminSocket {
    /// Opens the socket at the first of these paths that will do.
    ///
    /// # Errors
    /// None will: the last reason.
    pub fn open(paths: &[PathBuf]) -> io::Result<Self> {
        let mut result = Err(io::ErrorKind::NotFound.into());
        for path in paths {
            result = bind(path).map(|listener| Self { listener: Some(listener), path: path.clone() });
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Serves until the task is dropped.
    pub async fn serve(mut self, management: Arc<Management>) {
        let Some(listener) = self.listener.take() else { return };
        let service = routes::router(management).layer(Extension(Operator)).into_make_service();
        if let Err(error) = axum::serve(listener, service).await {
            tracing::error!(%error, path = %self.path.display(), "the admin socket has stopped");
        }
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // In a folder that others may write to, the socket could be theirs.
    let (owner, own) = (std::fs::metadata(folder)?.uid(), std::fs::metadata("/proc/self")?.uid());
    if owner != own && owner != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} is not ours", folder.display())));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}
