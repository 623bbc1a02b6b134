-- A guard as one writes it for OpenResty: one round trip to a Redis before the
-- upstream (SET NX GET), one behind it, in a timer, as nothing may wait for a
-- Redis where the response is at its end. Here to be compared with; what it
-- does not do is most of docs/guarantees.md.

local M = {}

local WINDOW = 86400

local function send(sock, ...)
    local args = { ... }
    local out = { "*", #args, "\r\n" }

    for _, a in ipairs(args) do
        a = tostring(a)
        out[#out + 1] = "$" .. #a .. "\r\n" .. a .. "\r\n"
    end

    return sock:send(table.concat(out))
end

local function answer(sock)
    local line, err = sock:receive()

    if not line then
        return nil, err
    end

    local kind, rest = line:sub(1, 1), line:sub(2)

    if kind == "$" then
        if rest == "-1" then
            return ngx.null
        end

        local data
        data, err = sock:receive(tonumber(rest) + 2)

        return data and data:sub(1, -3), err
    end

    if kind == "-" then
        return nil, rest
    end

    return rest
end

local function call(port, ...)
    local sock = ngx.socket.tcp()
    sock:settimeout(1000)

    local ok, err = sock:connect("127.0.0.1", port)

    if ok then
        ok, err = send(sock, ...)
    end

    if not ok then
        return nil, err
    end

    local res
    res, err = answer(sock)
    sock:setkeepalive(60000, 64)

    return res, err
end

function M.access(port)
    local key = ngx.var.http_idempotency_key

    if not key then
        return
    end

    ngx.req.read_body()

    local print = ngx.encode_base64(ngx.sha1_bin(
        table.concat({ ngx.req.get_method(), ngx.var.host, ngx.var.request_uri,
                       ngx.var.http_authorization or "",
                       ngx.req.get_body_data() or "" }, "\n")))

    local found, err = call(port, "SET", "lua:" .. key, print, "NX", "GET",
                            "EX", WINDOW)

    if not found then
        ngx.log(ngx.ERR, err)
        return ngx.exit(503)
    end

    if found == ngx.null then
        ngx.ctx.key = "lua:" .. key
        ngx.ctx.print = print
        return
    end

    if found:sub(1, #print) ~= print then
        return ngx.exit(409)
    end

    local status, kind, body = found:match("^(%d+) ([^\n]*)\n(.*)$",
                                           #print + 1)

    if not status then
        return ngx.exit(409)
    end

    ngx.status = tonumber(status)
    ngx.header["Content-Type"] = kind
    ngx.header["Content-Length"] = #body
    ngx.header["Idempotent-Replayed"] = "true"
    ngx.print(body)

    return ngx.exit(ngx.status)
end

function M.body()
    local ctx = ngx.ctx

    if ctx.key then
        ctx.body = ctx.body or {}
        ctx.body[#ctx.body + 1] = ngx.arg[1]
    end
end

function M.log(port)
    local ctx = ngx.ctx

    if ctx.key then
        ngx.timer.at(0, function(_, key, value)
            call(port, "SET", key, value, "EX", WINDOW)
        end, ctx.key, ctx.print .. ngx.status .. " "
                      .. (ngx.header["Content-Type"] or "") .. "\n"
                      .. table.concat(ctx.body or {}))
    end
end

return M
