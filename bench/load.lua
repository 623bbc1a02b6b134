-- The timed load of bench/tiers, for wrk: as many POST requests as it can send.
--
--     wrk ... -s load.lua URL -- PREFIX [COUNT]
--
-- Each request has a key of its own, or COUNT keys go round and round.  PREFIX
-- is their first 8 hex digits (bench/send makes the same keys).  The last line
-- of the output is for the shell:
--
--     BENCH requests refused broken
--
-- requests answered, those of them with a status above 399, and connections or
-- answers that broke.  Answers are not looked at further, as that would cost
-- the client too much.

local MARK = "00000000-0000-4000-8000-000000000000"

local head, tail, prefix
local ready, n = {}, 0


local function compose(i)
    return string.format("%s%s-0000-4000-8000-%012x%s", head, prefix, i, tail)
end


function init(args)
    prefix = args[1]

    wrk.method = "POST"
    wrk.body = os.getenv("BENCH_BODY")
    wrk.headers["Content-Type"] = "application/json"
    wrk.headers["Idempotency-Key"] = MARK

    local request = wrk.format()
    local from, to = string.find(request, MARK, 1, true)

    head = string.sub(request, 1, from - 1)
    tail = string.sub(request, to + 1)

    for i = 1, tonumber(args[2] or 0) do
        ready[i] = compose(i)
    end
end


function request()
    n = n + 1

    if #ready == 0 then
        return compose(n)
    end

    return ready[n % #ready + 1]
end


function done(summary, latency, requests)
    local e = summary.errors

    io.write(string.format("BENCH %d %d %d\n", summary.requests, e.status,
                           e.connect + e.read + e.write + e.timeout))
end
