# The official image with the module in it.  A module fits one version of nginx,
# so it is built in the image that will run it.
#
#     docker build -t nginx-idempotency .
#     docker build -t nginx-idempotency --build-arg NGINX=1.28.0 .

ARG NGINX=1.30.4

FROM nginx:${NGINX} AS build

# fetches a compiler, and the source of the nginx that is there
COPY . /module
RUN BUILD_DIR=/build /module/util/build

FROM nginx:${NGINX}

COPY --from=build /build/ngx_http_idempotency_module.so /usr/lib/nginx/modules/

# what the module needs for idempotency_zone ... state=
RUN apt-get update && apt-get install -y --no-install-recommends libsqlite3-0 \
    && rm -rf /var/lib/apt/lists/*

RUN sed -i '1i load_module modules/ngx_http_idempotency_module.so;' /etc/nginx/nginx.conf \
    && nginx -t
