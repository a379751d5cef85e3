//! Dials that leave from the port a node listens on, and from another one where the system gives that to none.
//!
//! Others learn of a node's port by its dials, and routers let answers through to it, so TCP dials are bound to the port of the
//! listener. On a host with many sockets another program's may have that number; then the bind fails with "address already in use",
//! and the dial with it, although any other port would do.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use libp2p::Multiaddr;
use libp2p::core::transport::{DialOpts, ListenerId, PortUse, Transport, TransportError, TransportEvent};

/// A transport whose dials do not end where the port of its listener is taken.
pub(crate) struct OwnPort<T> {
    inner: T,
    /// Dials from any port; it never listens.
    other: Arc<Mutex<T>>,
}

impl<T> OwnPort<T> {
    /// Listens and dials by `inner`, and dials from other ports by `other`.
    pub fn new(inner: T, other: T) -> Self {
        Self { inner, other: Arc::new(Mutex::new(other)) }
    }
}

/// Whether a port could not be had, which Windows says by another error.
fn is_taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
        || cfg!(windows) && error.kind() == io::ErrorKind::PermissionDenied
}

impl<T> Transport for OwnPort<T>
where
    T: Transport<Error = io::Error> + Send + Unpin + 'static,
    T::Dial: Send + 'static,
    T::Output: Send,
{
    type Output = T::Output;
    type Error = io::Error;
    type ListenerUpgrade = T::ListenerUpgrade;
    type Dial = BoxFuture<'static, io::Result<T::Output>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<Self::Dial, TransportError<io::Error>> {
        let dialed = self.inner.dial(address.clone(), options)?;
        let other = self.other.clone();
        Ok(async move {
            match dialed.await {
                Err(error) if is_taken(&error) && options.port_use == PortUse::Reuse => {
                    tracing::debug!(%address, "the own port is taken, dialed from another");
                    let options = DialOpts { port_use: PortUse::New, ..options };
                    let again = other.lock().unwrap_or_else(PoisonError::into_inner).dial(address, options);
                    again
                        .map_err(|refused| match refused {
                            TransportError::Other(error) => error,
                            refused => io::Error::other(refused.to_string()),
                        })?
                        .await
                }
                dialed => dialed,
            }
        }
        .boxed())
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use libp2p::core::Endpoint;

    use super::*;

    /// Says from which port it dialed; its own gives an error of this kind.
    struct Taken(io::ErrorKind);

    impl Transport for Taken {
        type Output = PortUse;
        type Error = io::Error;
        type ListenerUpgrade = BoxFuture<'static, io::Result<PortUse>>;
        type Dial = BoxFuture<'static, io::Result<PortUse>>;

        fn listen_on(&mut self, _: ListenerId, _: Multiaddr) -> Result<(), TransportError<io::Error>> {
            Ok(())
        }

        fn remove_listener(&mut self, _: ListenerId) -> bool {
            false
        }

        fn dial(&mut self, _: Multiaddr, options: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
            let error = io::Error::from(self.0);
            let dialed = if options.port_use == PortUse::Reuse { Err(error) } else { Ok(options.port_use) };
            Ok(std::future::ready(dialed).boxed())
        }

        fn poll(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
            Poll::Pending
        }
    }

    #[test]
    fn a_port_that_is_taken_is_no_reason_to_stay() {
        let dial = |kind, port_use| {
            let mut transport = OwnPort::new(Taken(kind), Taken(kind));
            let options = DialOpts { role: Endpoint::Dialer, port_use };
            let dialed = transport.dial("/ip4/127.0.0.1/tcp/1".parse().unwrap(), options).unwrap();
            dialed.now_or_never().unwrap().map_err(|error| error.kind())
        };
        assert_eq!(dial(io::ErrorKind::AddrInUse, PortUse::Reuse), Ok(PortUse::New));
        assert_eq!(dial(io::ErrorKind::AddrInUse, PortUse::New), Ok(PortUse::New));
        let refused = io::ErrorKind::ConnectionRefused;
        assert_eq!(dial(refused, PortUse::Reuse), Err(refused), "another port is refused as well");
    }
}
