
/*
 * Which request headers say who asks: names as clients, proxies, browsers and
 * frameworks really send them.
 */


#include "unit.h"

#include "request/ngx_http_idempotency_response.h"


static char  *credentials[] = {

    /* API keys and tokens */
    "X-Api-Key", "Api-Key", "ApiKey", "X-ApiKey", "X-API-Token",
    "X-Auth-Token", "X-Access-Token", "Access-Token", "Private-Token",
    "Job-Token", "Deploy-Token", "X-Goog-Api-Key",
    "Ocp-Apim-Subscription-Key", "X-Shopify-Access-Token",
    "X-Shopify-Storefront-Access-Token", "X-Vault-Token", "X-User-Token",
    "X-Token", "Token", "X-Consul-Token", "X-Nomad-Token", "X-Figma-Token",
    "X-GitLab-Token", "X-Plex-Token", "X-Emby-Token",
    "X-MediaBrowser-Token", "X-Algolia-Api-Key", "X-MAL-Client-ID",
    "X-IBM-Client-Id", "X-IBM-Client-Secret", "Client-ID", "X-Client-Id",
    "X-Client-Secret", "X-PayPal-Auth-Assertion", "X-Mashape-Key",
    "X-RapidAPI-Key", "X-Functions-Key", "X-Master-Key", "X-Bz-Auth-Token",
    "X-Amz-Security-Token", "X-Amz-Access-Token", "X-Aws-Ec2-Metadata-Token",
    "X-Storage-Token", "X-Subject-Token", "X-Service-Token",
    "X-OpenStack-Auth", "X-Auth-Key", "X-Auth-Email", "X-Auth-User", "X-Auth",
    "X-Authorization", "X-Authentication-Token", "X-Application-Key",
    "X-App-Key", "X-AppKey", "X-App-Token", "DD-API-KEY",
    "DD-APPLICATION-KEY", "X-Honeycomb-Team", "X-Insert-Key", "X-Query-Key",
    "X-License-Key", "License-Key", "X-Parse-REST-API-Key",
    "X-Parse-Master-Key", "X-Parse-Session-Token", "X-Killbill-ApiKey",
    "X-Killbill-ApiSecret", "X-Postmark-Server-Token",
    "X-Postmark-Account-Token", "X-N8N-API-KEY", "X-Recharge-Access-Token",
    "X-BC-Auth-Token", "X-Spree-Token", "X-Spree-Order-Token", "X-WC-Session",
    "X-Wc-Store-Api-Key", "Cart-Token", "X-Magento-Customer-Token",
    "X-SW-Access-Key", "sw-context-token", "X-Contentful-User",
    "X-Square-Access-Token", "X-CSAPI-Passwd", "X-CMC_PRO_API_KEY",
    "X-MBX-APIKEY", "CB-ACCESS-KEY", "X-Password",
    "X-Passwd", "X-PASSW", "X-Secret", "X-Hasura-Admin-Secret",
    "X-Client-Key", "X-Public-Key", "X-Device-Token", "X-Refresh-Token",
    "X-Id-Token", "X-JWT", "X-JWT-Assertion", "JWT", "X-Jwt-Payload",
    "X-Goog-IAP-JWT-Assertion", "Cf-Access-Jwt-Assertion",
    "Cf-Access-Client-Id", "Cf-Access-Client-Secret",
    "Cf-Access-Authenticated-User-Email", "X-Endpoint-API-UserInfo",
    "X-Apigateway-Api-Userinfo", "X-Credential", "X-Credentials",

    /* what a front says of the user */
    "Remote-User", "X-Remote-User", "X-Remote-Email", "Remote-Email",
    "X-WebAuth-User", "X-Auth-Request-User", "X-Auth-Request-Email",
    "X-Auth-Request-Access-Token", "X-Auth-Request-Preferred-Username",
    "X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Access-Token",
    "X-Forwarded-Preferred-Username", "X-Authenticated-User",
    "X-Authenticated-Userid", "X-Consumer-Id", "X-Consumer-Username",
    "X-Consumer-Custom-ID", "X-Credential-Identifier", "X-User", "X-User-Id",
    "X-UserId", "X-User-Email", "X-User-Name", "X-Username", "X-Email",
    "X-UID", "X-Sub", "X-Subject", "X-Authentik-Username", "X-Authentik-Uid",
    "X-Authentik-Email", "X-Authentik-Jwt", "X-Pomerium-Jwt-Assertion",
    "X-Pomerium-Claim-Email", "X-MS-CLIENT-PRINCIPAL",
    "X-MS-CLIENT-PRINCIPAL-ID", "X-MS-CLIENT-PRINCIPAL-NAME",
    "X-MS-TOKEN-AAD-ACCESS-TOKEN", "X-Amzn-Oidc-Identity", "X-Amzn-Oidc-Data",
    "X-Amzn-Oidc-Accesstoken", "X-Goog-Authenticated-User-Email",
    "X-Goog-Authenticated-User-ID", "OIDC_CLAIM_sub", "X-Oidc-Username",
    "Tailscale-User-Login", "X-Ldap-User",
    "X-Hasura-User-Id", "X-Appengine-User-Id", "X-Trusted-Userid",
    "Impersonate-User", "Impersonate-Uid", "X-Impersonate", "X-On-Behalf-Of",
    "Sudo", "X-Acting-User", "X-Session-Id", "X-Session", "SessionId",
    "X-SessionToken", "X-Transmission-Session-Id", "Session", "X-Identity",

    /* certificates */
    "X-Forwarded-Client-Cert", "X-Client-Cert", "Client-Cert",
    "X-Amzn-Mtls-Clientcert", "X-Amzn-Mtls-Clientcert-Serial-Number",
    "X-Amzn-Mtls-Clientcert-Subject", "X-ARR-ClientCert", "X-SSL-Client-Cert",
    "X-SSL-Client-CN", "X-SSL-Client-DN", "X-SSL-Client-S-DN",
    "X-SSL-Client-Verify", "X-SSL-Client-Serial", "SSL_CLIENT_S_DN_CN",
    "Ssl-Client-Subject-Dn", "Ssl-Client-Verify", "X-Client-Cert-Sub",
    "X-Client-DN", "X-Ssl-Cert",

    /* for whom */
    "X-Tenant", "X-Tenant-Id", "TenantId", "X-Scope-OrgID", "X-Org-Id",
    "X-Organization", "X-Organization-Id", "OpenAI-Organization",
    "OpenAI-Project", "X-Goog-User-Project", "X-Project-Id", "Stripe-Account",
    "Stripe-Context", "X-Account-Id", "X-Account", "X-Merchant-Id",
    "X-MerchantId", "Merchant-Account", "X-Customer-Id", "X-Customer",
    "X-Shop-Id", "X-Shop", "X-Store", "Store", "X-Store-Code", "X-Company-Id",
    "X-Workspace-Id", "X-Team-Id", "X-Team", "X-Partner-Id", "Xero-tenant-id",
     "X-Shopify-Shop-Domain", "X-Subscription-Key",
    "X-Restli-Principal", "AccountId", "PayPal-Client-Id",

    /* they only begin like what is left out, or have it elsewhere */
    "IFTTT-Service-Key", "Security-Token", "Acceptance-Token",
    "Contentful-Token", "Proxied-User", "X-Proxy-User", "X-Content-Token",

    NULL
};


static char  *others[] = {

    /* what browsers and libraries send */
    "Host", "User-Agent", "Accept", "Accept-Language", "Accept-Encoding",
    "Accept-Charset", "Accept-Datetime", "Accept-Key", "Cookie", "Cookie2",
    "Connection", "Keep-Alive", "Referer", "Origin", "DNT", "Pragma",
    "Cache-Control", "Content-Type", "Content-Length", "Content-Encoding",
    "Content-Language", "Content-MD5", "Content-Digest", "Content-Location",
    "Content-Disposition", "Content-Key", "Date", "Expect", "From",
    "Forwarded", "If-Match", "If-None-Match", "If-Modified-Since", "If-Range",
    "If-Unmodified-Since", "If-Schedule-Tag-Match", "Max-Forwards", "Range",
    "Prefer", "Priority", "Purpose", "TE", "Trailer", "Transfer-Encoding",
    "Upgrade", "Upgrade-Insecure-Requests", "Via", "Warning", "Early-Data",
    "HTTP2-Settings", "Save-Data", "Downlink", "ECT", "RTT", "Device-Memory",
    "Viewport-Width", "Width", "DPR", "Depth", "Destination", "Overwrite",
    "Lock", "Timeout", "Alt-Used", "Service-Worker", "X-Requested-With",
    "X-Http-Method-Override", "X-HTTP-Method", "X-Client-Data", "X-Moz",
    "Sec-Fetch-Mode", "Sec-Fetch-Site", "Sec-Fetch-User", "Sec-Fetch-Dest",
    "Sec-CH-UA", "Sec-CH-UA-Mobile", "Sec-CH-UA-Platform", "Sec-GPC",
    "Sec-Purpose", "Sec-WebSocket-Key", "Sec-WebSocket-Version",
    "Sec-Token-Binding", "Sec-User", "Proxy-Authorization",
    "Proxy-Connection", "Proxy-User", "Access-Control-Request-Headers",
    "Access-Control-Request-Method", "Access-Control-Request-Private-Network",

    /* what fronts add */
    "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host",
    "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-Server",
    "X-Forwarded-Scheme", "X-Original-URL", "X-Original-Forwarded-For",
    "X-Real-IP", "True-Client-IP", "CF-Connecting-IP", "CF-Connecting-IPv6",
    "CF-IPCountry", "CF-Ray", "CF-Visitor", "CF-EW-Via", "CF-Worker",
    "CDN-Loop", "Fastly-Client-IP", "Fastly-FF", "Fastly-SSL", "X-Client-IP",
    "X-Cluster-Client-IP", "X-ProxyUser-Ip", "X-Azure-ClientIP",
    "X-Azure-FDID", "X-Azure-Ref", "X-Azure-SocketIP", "X-FD-HealthProbe",
    "X-Appengine-Country", "X-Appengine-City", "X-Cloud-Trace-Context",
    "X-Envoy-External-Address", "X-Envoy-Attempt-Count",
    "X-Envoy-Original-Path", "X-Envoy-Expected-Rq-Timeout-Ms", "X-Varnish",
    "X-Akamai-Edgescape", "Akamai-Origin-Hop", "X-Amz-Cf-Id",
    "CloudFront-Viewer-Country", "CloudFront-Is-Mobile-Viewer",
    "CloudFront-Forwarded-Proto", "X-Vercel-Id", "X-Vercel-Ip-Country",
    "X-NF-Request-Id", "X-Country-Code", "X-Device-Type", "X-Scheme",
    "X-ProxyUser-Location", "X-Forwarded-TLS-Version", "X-SSL-Protocol",
    "X-SSL-Cipher", "X-WAP-Profile", "X-UIDH", "X-ATT-DeviceId",

    /* traces and counters, another one for each attempt */
    "traceparent", "tracestate", "baggage", "b3", "X-B3-TraceId",
    "X-B3-SpanId", "X-B3-Sampled", "X-B3-ParentSpanId", "X-Request-Id",
    "X-Request-ID", "Request-Id", "X-Correlation-Id",
     "X-Amzn-Trace-Id", "X-Amzn-RequestId",
    "X-Datadog-Trace-Id", "X-Datadog-Parent-Id",
    "X-Datadog-Sampling-Priority", "X-Datadog-Tags", "sentry-trace",
    "X-Sentry-Auth", "X-Ot-Span-Context", "uber-trace-id", "X-Trace-Token",
    "newrelic", "elastic-apm-traceparent", "X-Request-Start", "X-Queue-Start",
    "X-Request-Time", "X-Timestamp", "X-Retry-Count", "X-Attempt",
    "Retry-Attempt", "Amz-Sdk-Request", "Amz-Sdk-Invocation-Id",
    "X-Stripe-Client-User-Agent", "X-Stripe-Client-Telemetry",
    "Idempotency-Key", "X-Idempotency-Key", "Idempotency_Key",
    "X-Account-Request-Id", "PayPal-Request-Id", "Client-Request-Id",
    "X-Ms-Client-Request-Id", "Stripe-Version", "Shopify-Api-Version",
    "X-GitHub-Api-Version", "Notion-Version", "Idempotency-Token",

    /* signatures, proofs and challenges: new for each attempt */
    "Signature", "Signature-Input", "Stripe-Signature", "X-Hub-Signature",
    "X-Hub-Signature-256", "X-Signature", "X-Sign", "Digest", "Repr-Digest",
    "X-Auth-Timestamp", "X-Auth-Nonce", "X-Auth-Signature", "X-Auth-Date",
    "X-Api-Key-Signature", "X-Nonce", "X-Amz-Date", "X-Amz-Content-Sha256",
    "X-Amz-User-Agent", "X-Shopify-Hmac-Sha256", "X-Wc-Webhook-Signature",
    "X-Token-Hash", "X-Token-Expires", "X-Session-Start", "CB-ACCESS-SIGN",
    "CB-ACCESS-TIMESTAMP", "X-CSRF-Token", "X-CSRFToken", "X-XSRF-TOKEN",
    "X-XsrfToken", "CSRF-Token", "Anti-Forgery-Token",
    "RequestVerificationToken", "X-RequestVerificationToken", "X-Csrf",
    "X-Recaptcha-Token", "X-Captcha-Token", "Cf-Turnstile-Token", "X-OTP",
    "X-GitHub-OTP", "X-Auth-OTP", "X-2FA-Token", "X-User-2fa-Code",

    /* of the page, the place and the moment */
    "X-User-Agent",  "X-User-Timezone", "X-Timezone",
    "X-User-Locale", "X-Locale", "X-User-Language", "X-User-Location",
    "X-User-IP", "X-Client-Timezone", "X-Last-Activity",
    "X-Last-User-Activity", "X-Form-Token", "X-Ajax-Token", "X-PJAX",
    "X-Push-Token", "HX-Request", "HX-Current-URL", "HX-Target", "HX-Trigger",
    "Turbo-Frame", "Turbo-Visit", "X-Inertia", "X-Inertia-Version",
    "X-Livewire", "X-Turbo-Nonce", "Next-Action", "Next-Router-State-Tree",
    "RSC", "X-Nextjs-Data", "X-SvelteKit-Action", "X-Sveltekit-Invalidated",
    "GraphQL-Preflight", "Apollo-Require-Preflight",
    "ApolloGraphQL-Client-Version", "X-APOLLO-OPERATION-NAME", "Wp-Nonce",
    "X-WP-Nonce", "X-App-Version", "X-Platform", "X-Build",
    "X-Client-Version", "X-Client-Name", "X-Device", "X-Device-Id", "X-Debug",
    "Client", "Id", "-", "_", "--", "X-Id", "X-Client", "Ssl", "Request",
    "Keyboard", "X-Users", "X-Hotkey", "Monkey-Id", "X-Certain",
    "X-Subscribe", "X-Authority", "X-Toke", "X-Sess-Ion", "Id-Client",
    "Client-Ssl",

    NULL
};


static ngx_uint_t
counts(char *name, u_char separator)
{
    size_t   i, len;
    u_char  *p, text[64];

    len = strlen(name);

    /* a byte too far is seen by what stands there */

    p = text + sizeof(text) - len;

    for (i = 0; i < len; i++) {
        p[i] = (name[i] == '-' || name[i] == '_')
                   ? separator : ngx_tolower(name[i]);
    }

    return ngx_http_idempotency_credential(p, len, ngx_hash_key(p, len));
}


static void
told(char **names, ngx_uint_t wanted)
{
    for ( /* void */ ; *names; names++) {

        if (!check_equal(counts(*names, '-'), wanted)
            || !check_equal(counts(*names, '_'), wanted))
        {
            unit_note("%s", *names);
        }
    }
}


unit_case("what counts as a credential")
{
    told(credentials, 1);
}


unit_case("... and what doesn't")
{
    told(others, 0);
}


/* any bytes, of any length: nothing is read behind them */

unit_case("a name of any bytes")
{
    u_char      *p;
    ngx_uint_t   i, n, len, found[2];

    found[0] = found[1] = 0;

    for (n = 0; n < 200000; n++) {

        len = 1 + n % 40;
        p = malloc(len);

        for (i = 0; i < len; i++) {
            p[i] = "-_eknotjwsrif2\xff"[rand() % 15];
        }

        found[ngx_http_idempotency_credential(p, len, n)]++;

        free(p);
    }

    check(found[0] > 1000 && found[1] > 1000);
}


int
main(void)
{
    ngx_http_idempotency_credentials_init();

    return unit_run();
}
