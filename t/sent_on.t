# ARCHITECTURE.md, "One request": a request that is sent on to another location
# before it is decided, and one that comes back by an error page.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

run_tests();

__DATA__

=== TEST 1: what try_files sends on is judged by the location that it comes to
--- config
location /strict  { idempotency zone=z; idempotency_missing_key reject;
                    try_files /none @passes; }
location @passes  { idempotency zone=z; proxy_pass http://backend; }
location /loose   { idempotency zone=z; try_files /none @rejects; }
location /bypass  { idempotency zone=z; idempotency_bypass 1;
                    try_files /none @rejects; }
location @rejects { idempotency zone=z; idempotency_missing_key reject;
                    proxy_pass http://backend; }
--- request eval: ["POST /strict\nb", "POST /loose\nb", "POST /bypass\nb"]
--- error_code: 200 400 400
--- idempotency_status: - MISSING MISSING
--- executions: 1



=== TEST 2: ... and with a key it is bound there, as that location has it
--- config
location /sent  { idempotency zone=z; idempotency_scope here;
                  idempotency_key $http_other; try_files /none @there; }
location @there { idempotency zone=z; idempotency_scope there;
                  idempotency_status conflict=418;
                  proxy_pass http://backend; }
--- request eval: ["POST /sent\nb", "POST /sent\nb", "POST /sent\nc", "POST /sent\nb"]
--- more_headers eval
["Idempotency-Key: there\nOther: 1", "Idempotency-Key: there\nOther: 2",
 "Idempotency-Key: there\nOther: 1", "Idempotency-Key: elsewhere\nOther: 1"]
--- error_code: 200 200 418 200
--- idempotency_status: NEW REPLAYED CONFLICT NEW
--- executions: 2



=== TEST 3: what passed without a key may be protected where it is sent on to
--- config
location /static { idempotency zone=z; root html; error_page 404 =200 @after; }
location @after  { idempotency zone=z; idempotency_missing_key reject;
                   proxy_pass http://backend; }
--- request
POST /static
b
--- error_code: 400
--- idempotency_status: MISSING
--- executions: 0



=== TEST 4: where a body was refused, its error page claims nothing
--- config
location /body   { idempotency zone=z; satisfy any; allow all;
                   client_max_body_size 10; error_page 413 =200 @refused;
                   proxy_pass http://backend; }
location @refused { idempotency zone=z; proxy_pass http://backend; }
--- more_headers
Idempotency-Key: refused
Transfer-Encoding: chunked
--- request eval: [("POST /body\n" . "14\r\n" . "b" x 20 . "\r\n0\r\n\r\n") x 2]
--- error_code: 200
--- idempotency_status: -
--- executions: 2



=== TEST 5: what is let through was not refused; without a key there is no token
--- config
add_header X-Refusal $idempotency_refusal always;
add_header X-Token $idempotency_token always;
location /warn { idempotency zone=z; idempotency_similar warn;
                 proxy_pass http://backend; }
location /dry  { idempotency zone=z; idempotency_missing_key reject;
                 idempotency_dry_run on; proxy_pass http://backend; }
location /bad  { idempotency zone=z; idempotency_missing_key reject; }
--- request eval: ["POST /warn\nb", "POST /warn\nb", "POST /dry\nb", "POST /bad\nb"]
--- more_headers eval: ["Idempotency-Key: one", "Idempotency-Key: two", "", ""]
--- error_code: 200 200 200 400
--- idempotency_status: NEW SIMILAR MISSING_DRY_RUN MISSING
--- response_headers eval
[("! X-Refusal") x 2, "! X-Refusal\n! X-Token", "X-Refusal: missing\n! X-Token"]
--- executions: 3
