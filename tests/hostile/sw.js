// the script of service-worker.html
self.addEventListener('install', () => self.skipWaiting())
self.addEventListener('activate', e => e.waitUntil(clients.claim()))
self.addEventListener('message', e => { fetch(e.data + '/service', {mode: 'no-cors'}).catch(() => {}); importScripts; new WebSocket(e.data.replace('http', 'ws') + '/service-socket') })
self.addEventListener('fetch', e => e.respondWith(fetch(e.request)))
