// An authorization server for tests: oidc-provider, with two forms that anybody may fill in.
//
//   node provider.mjs '{"port": 0, "resource": "http://127.0.0.1:9000/mcp", ...}'
//
// Prints its issuer. GET /test/events lists what token requests came to, and /test/secrets the secrets in them
// by their kinds; POST /test/settings changes what it does: `delay` and `hold` are milliseconds for which a token request
// waits before the issuer knows of it (if its client has gone by then, it never does), and after the issuer has decided.
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const options = JSON.parse(process.argv[2] ?? '{}');
const settings = { lifetime: options.lifetime ?? 3600, format: options.format ?? 'opaque', refresh: true, down: false, delay: 0, hold: 0 };
const events = [];

const server = createServer();
await new Promise((done) => server.listen(options.port ?? 0, '127.0.0.1', done));
const issuer = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(issuer, {
  clients: options.clients ?? [],
  scopes: ['openid', 'offline_access', 'notes', 'files'],
  clientDefaults: { grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'] },
  features: {
    devInteractions: { enabled: true },
    registration: { enabled: options.registration ?? true },
    revocation: { enabled: true },
    introspection: { enabled: true, allowedPolicy: () => true },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx, resource) => ({
        scope: 'notes files',
        audience: resource,
        accessTokenTTL: settings.lifetime,
        accessTokenFormat: settings.format,
      }),
    },
  },
  issueRefreshToken: (ctx, client) => settings.refresh && client.grantTypeAllowed('refresh_token'),
  rotateRefreshToken: true,
  ttl: { AccessToken: () => settings.lifetime, ClientCredentials: () => settings.lifetime, RefreshToken: 86400, Grant: 86400, Session: 86400, Interaction: 3600 },
  pkce: { required: () => true },
  findAccount: (ctx, id) => ({ accountId: id, claims: async () => ({ sub: id }) }),
});
const grants = new Set();
const secrets = [];
provider.on('grant.success', (ctx) => {
  for (const part of [ctx.oidc.params, ctx.body]) {
    for (const kind of ['code', 'code_verifier', 'refresh_token', 'access_token', 'client_assertion']) {
      if (part[kind]) secrets.push([kind, part[kind]]);
    }
  }
});
provider.on('grant.success', (ctx) => ctx.oidc.entities.Grant && grants.add(ctx.oidc.entities.Grant.jti));
async function revokeAll() {
  for (const id of grants) {
    for (const kind of ['AccessToken', 'RefreshToken']) await provider[kind].adapter.revokeByGrantId(id);
  }
  grants.clear();
}
provider.on('grant.success', (ctx) => events.push({ grant: ctx.oidc.params.grant_type, resource: ctx.oidc.params.resource }));
provider.on('grant.error', (ctx, error) => events.push({ grant: ctx.oidc.params?.grant_type, error: error.error }));
provider.on('grant.revoked', () => events.push({ revoked: 'grant' }));
provider.on('registration_create.success', (ctx, client) => events.push({ registered: client.applicationType }));

const pause = (time) => new Promise((done) => setTimeout(done, time));
provider.use(async (ctx, next) => {
  await next();
  if (settings.hold && ctx.path === '/token') await pause(settings.hold);
});
const handle = provider.callback();
server.on('request', async (request, response) => {
  if (request.url === '/test/events') {
    response.end(JSON.stringify(events));
  } else if (request.url === '/test/secrets') {
    response.end(JSON.stringify(secrets));
  } else if (request.url === '/test/settings') {
    const parts = [];
    for await (const part of request) parts.push(part);
    Object.assign(settings, JSON.parse(Buffer.concat(parts)));
    if (settings.revoke_all) await revokeAll();
    settings.revoke_all = false;
    response.end('{}');
  } else if (settings.down || (settings.token_down && request.url === '/token')) {
    response.destroy();
  } else {
    if (settings.delay && request.url === '/token') {
      events.push({ waits: request.url });
      await pause(settings.delay);
      if (request.socket.destroyed) return;
    }
    handle(request, response);
  }
});
console.log(issuer);
