//! Protocols that are polled when they were woken, and not at every frame.
//!
//! A connection of libp2p is one task, which carries the frames of all streams. Whenever it is woken, mostly by a frame, it
//! polls the handlers of all protocols and compares the names of all that they accept with those of the time before. A
//! handler that was neither woken nor told anything has nothing new to say in either. Here it is not asked: it is polled
//! under a waker of its own, and what it accepts is kept until it may have changed.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{InboundUpgrade, UpgradeInfo};
use libp2p::swarm::handler::{
    ConnectionEvent, ConnectionHandler, ConnectionHandlerEvent, FullyNegotiatedInbound, InboundUpgradeSend,
    ListenUpgradeError, UpgradeInfoSend,
};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, Stream, SubstreamProtocol, THandler,
    THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};

/// A behaviour whose handlers are polled when they were woken; see the [module](self).
pub(crate) struct Woken<B>(B);

impl<B> Woken<B> {
    /// `behaviour`, which stays reachable through this.
    pub fn new(behaviour: B) -> Self {
        Self(behaviour)
    }
}

impl<B> Deref for Woken<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.0
    }
}

impl<B> DerefMut for Woken<B> {
    fn deref_mut(&mut self) -> &mut B {
        &mut self.0
    }
}

impl<B: NetworkBehaviour> NetworkBehaviour for Woken<B> {
    type ConnectionHandler = Handler<B::ConnectionHandler>;
    type ToSwarm = B::ToSwarm;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.0.handle_pending_inbound_connection(connection, local, remote)
    }

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.0.handle_established_inbound_connection(connection, peer, local, remote).map(Handler::new)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        self.0.handle_pending_outbound_connection(connection, peer, addresses, role)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.0.handle_established_outbound_connection(connection, peer, address, role, port).map(Handler::new)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        self.0.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        self.0.on_connection_handler_event(peer, connection, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        self.0.poll(cx)
    }
}

/// Whether a handler was woken, and who polls it.
#[derive(Default)]
struct Bell {
    rung: AtomicBool,
    poller: AtomicWaker,
}

impl Bell {
    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
        self.poller.wake();
    }
}

/// The handler of all protocols of a connection.
pub(crate) struct Handler<H: ConnectionHandler> {
    inner: H,
    bell: Arc<Bell>,
    waker: Waker,
    /// What it accepts; `None` where that may have changed.
    accepts: RefCell<Option<Accepts<H::InboundProtocol, H::InboundOpenInfo>>>,
}

impl<H: ConnectionHandler> Handler<H> {
    fn new(inner: H) -> Self {
        let bell = Arc::new(Bell::default());
        bell.ring();
        let waker = Waker::from(bell.clone());
        Self { inner, bell, waker, accepts: RefCell::new(None) }
    }

    /// The handler, which may have something new to say from now on.
    fn touch(&mut self) -> &mut H {
        self.bell.ring();
        *self.accepts.get_mut() = None;
        &mut self.inner
    }
}

impl<H: ConnectionHandler> ConnectionHandler for Handler<H> {
    type FromBehaviour = H::FromBehaviour;
    type ToBehaviour = H::ToBehaviour;
    type InboundProtocol = Accepts<H::InboundProtocol, H::InboundOpenInfo>;
    type OutboundProtocol = H::OutboundProtocol;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = H::OutboundOpenInfo;

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol, ()> {
        let mut accepts = self.accepts.borrow_mut();
        // One that is held elsewhere is being negotiated under: it is used up there.
        let kept = accepts.take().filter(Accepts::is_unused);
        let kept = accepts.insert(kept.unwrap_or_else(|| Accepts::new(self.inner.listen_protocol())));
        SubstreamProtocol::new(kept.clone(), ()).with_timeout(kept.timeout)
    }

    fn connection_keep_alive(&self) -> bool {
        self.inner.connection_keep_alive()
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<H::OutboundProtocol, H::OutboundOpenInfo, H::ToBehaviour>> {
        self.bell.poller.register(cx.waker());
        if !self.bell.rung.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        *self.accepts.get_mut() = None;
        let polled = self.inner.poll(&mut Context::from_waker(&self.waker));
        if polled.is_ready() {
            // It may have more to say, and wakes only those who were told that it has not.
            self.bell.ring();
        }
        polled
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Option<H::ToBehaviour>> {
        self.inner.poll_close(cx)
    }

    fn on_behaviour_event(&mut self, event: H::FromBehaviour) {
        self.touch().on_behaviour_event(event);
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<Self::InboundProtocol, H::OutboundProtocol, (), H::OutboundOpenInfo>,
    ) {
        use ConnectionEvent as Event;
        let event = match event {
            Event::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) => {
                let (protocol, info) = protocol;
                Event::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, info })
            }
            Event::ListenUpgradeError(ListenUpgradeError { error, .. }) => {
                let Some((error, info)) = error else { return };
                Event::ListenUpgradeError(ListenUpgradeError { error, info })
            }
            Event::FullyNegotiatedOutbound(event) => Event::FullyNegotiatedOutbound(event),
            Event::DialUpgradeError(event) => Event::DialUpgradeError(event),
            Event::AddressChange(event) => Event::AddressChange(event),
            Event::LocalProtocolsChange(event) => Event::LocalProtocolsChange(event),
            Event::RemoteProtocolsChange(event) => Event::RemoteProtocolsChange(event),
            _ => return,
        };
        self.touch().on_connection_event(event);
    }
}

/// The name of a protocol that a handler accepts, and its place among them.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    text: Arc<str>,
    at: usize,
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

/// The names of all protocols that a handler accepts, one after the other.
pub(crate) struct Names {
    all: Arc<[Name]>,
    next: usize,
}

impl Iterator for Names {
    type Item = Name;

    fn next(&mut self) -> Option<Name> {
        let name = self.all.get(self.next).cloned();
        self.next += 1;
        name
    }
}

/// What a handler accepts of a stream that the other end opens, for one stream.
pub(crate) struct Accepts<U, I> {
    names: Arc<[Name]>,
    timeout: Duration,
    /// Gone once a stream was negotiated.
    upgrade: Arc<Mutex<Option<(U, I)>>>,
}

impl<U, I> Clone for Accepts<U, I> {
    fn clone(&self) -> Self {
        Self { names: self.names.clone(), timeout: self.timeout, upgrade: self.upgrade.clone() }
    }
}

impl<U, I> Accepts<U, I> {
    /// Whether only one is here, and no stream was negotiated under it.
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.upgrade) == 1
            && self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl<U: UpgradeInfoSend, I> Accepts<U, I> {
    fn new(protocol: SubstreamProtocol<U, I>) -> Self {
        let timeout = *protocol.timeout();
        let (upgrade, info) = protocol.into_upgrade();
        let names = upgrade.protocol_info().enumerate();
        let names = names.map(|(at, name)| Name { text: name.as_ref().into(), at }).collect();
        Self { names, timeout, upgrade: Arc::new(Mutex::new(Some((upgrade, info)))) }
    }
}

impl<U, I> UpgradeInfo for Accepts<U, I> {
    type Info = Name;
    type InfoIter = Names;

    fn protocol_info(&self) -> Names {
        Names { all: self.names.clone(), next: 0 }
    }
}

impl<U: InboundUpgradeSend, I: Send + 'static> InboundUpgrade<Stream> for Accepts<U, I> {
    type Output = (U::Output, I);
    /// `None` where there is nothing to upgrade with.
    type Error = Option<(U::Error, I)>;
    type Future = BoxFuture<'static, Result<Self::Output, Self::Error>>;

    fn upgrade_inbound(self, stream: Stream, name: Name) -> Self::Future {
        let upgrade = self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
        let named = upgrade.and_then(|(upgrade, info)| {
            let name = upgrade.protocol_info().nth(name.at)?;
            Some((upgrade, info, name))
        });
        let Some((upgrade, info, name)) = named else { return futures::future::err(None).boxed() };
        let upgraded = upgrade.upgrade_inbound(stream, name);
        upgraded
            .map(|upgraded| match upgraded {
                Ok(output) => Ok((output, info)),
                Err(error) => Err(Some((error, info))),
            })
            .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use libp2p::StreamProtocol;
    use libp2p::core::upgrade::ReadyUpgrade;
    use libp2p::swarm::handler::{AddressChange, ProtocolSupport};

    use super::*;

    const NAME: StreamProtocol = StreamProtocol::new("/counted/1");

    /// Counts what it is asked, says as much as it is told to, and can be woken from outside.
    #[derive(Default)]
    struct Counted {
        polled: usize,
        listened: Arc<AtomicUsize>,
        to_say: usize,
        waker: Option<Waker>,
    }

    impl ConnectionHandler for Counted {
        type FromBehaviour = usize;
        type ToBehaviour = ();
        type InboundProtocol = ReadyUpgrade<StreamProtocol>;
        type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
        type InboundOpenInfo = usize;
        type OutboundOpenInfo = ();

        fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol, usize> {
            let number = self.listened.fetch_add(1, Ordering::Relaxed);
            SubstreamProtocol::new(ReadyUpgrade::new(NAME), number)
        }

        fn poll(
            &mut self,
            cx: &mut Context<'_>,
        ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, (), ()>> {
            self.polled += 1;
            if self.to_say > 0 {
                self.to_say -= 1;
                return Poll::Ready(ConnectionHandlerEvent::ReportRemoteProtocols(ProtocolSupport::Added(
                    Default::default(),
                )));
            }
            self.waker = Some(cx.waker().clone());
            Poll::Pending
        }

        fn on_behaviour_event(&mut self, more: usize) {
            self.to_say += more;
        }

        fn on_connection_event(
            &mut self,
            _: ConnectionEvent<Self::InboundProtocol, Self::OutboundProtocol, usize, ()>,
        ) {
        }
    }

    #[derive(Default)]
    struct Connection(AtomicUsize);

    impl Wake for Connection {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_handler_is_polled_when_it_was_woken_or_told_something() {
        let connection = Arc::new(Connection::default());
        let waker = Waker::from(connection.clone());
        let mut cx = Context::from_waker(&waker);
        let mut handler = Handler::new(Counted::default());
        for _ in 0..3 {
            assert!(handler.poll(&mut cx).is_pending());
        }
        assert_eq!(handler.inner.polled, 1, "a new one has something to say, maybe, and then nothing");

        handler.on_behaviour_event(2);
        assert!(handler.poll(&mut cx).is_ready() && handler.poll(&mut cx).is_ready());
        assert!(handler.poll(&mut cx).is_pending() && handler.poll(&mut cx).is_pending());
        assert_eq!(handler.inner.polled, 4, "until it has said all");

        handler.inner.waker.take().unwrap().wake();
        assert_eq!(connection.0.load(Ordering::Relaxed), 1, "who polls it is woken");
        assert!(handler.poll(&mut cx).is_pending() && handler.poll(&mut cx).is_pending());
        assert_eq!(handler.inner.polled, 5);

        let new_address = Multiaddr::empty();
        handler
            .on_connection_event(ConnectionEvent::AddressChange(AddressChange { new_address: &new_address }));
        assert!(handler.poll(&mut cx).is_pending());
        assert_eq!(handler.inner.polled, 6);
    }

    #[test]
    fn what_is_accepted_is_asked_for_when_it_may_have_changed() {
        let mut handler = Handler::new(Counted::default());
        let listened = handler.inner.listened.clone();
        let names = |handler: &Handler<Counted>| -> Vec<String> {
            let names = UpgradeInfo::protocol_info(handler.listen_protocol().upgrade());
            names.map(|name| name.as_ref().to_owned()).collect()
        };
        for _ in 0..3 {
            assert_eq!(names(&handler), [NAME.as_ref()]);
        }
        assert_eq!(listened.load(Ordering::Relaxed), 1);
        handler.on_behaviour_event(0);
        assert_eq!((names(&handler).len(), listened.load(Ordering::Relaxed)), (1, 2));

        // Two streams that are negotiated at once are upgraded by one each.
        let (one, ()) = handler.listen_protocol().into_upgrade();
        let (other, ()) = handler.listen_protocol().into_upgrade();
        let number = |accepts: &Accepts<_, usize>| accepts.upgrade.lock().unwrap().take().map(|(_, n)| n);
        assert_eq!((number(&one), number(&other)), (Some(1), Some(2)));
        drop((one, other));
        // What is used up is not offered again.
        let (next, ()) = handler.listen_protocol().into_upgrade();
        assert_eq!(number(&next), Some(3));
    }
}
