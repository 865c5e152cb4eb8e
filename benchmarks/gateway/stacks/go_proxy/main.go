// A gateway of the standard library's parts: a key, the model out of the body, httputil.ReverseProxy.
package main

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
)

func main() {
	listen, upstream, key := os.Args[1], os.Args[2], []byte("Bearer "+os.Args[3])
	target, err := url.Parse(upstream)
	if err != nil {
		log.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
	models := map[string]*httputil.ReverseProxy{"bench": proxy}

	handler := func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), key) != 1 {
			http.Error(w, "no such key", http.StatusUnauthorized)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "the body ended early", http.StatusBadRequest)
			return
		}
		var asked map[string]interface{}
		if json.Unmarshal(body, &asked) != nil {
			http.Error(w, "no JSON", http.StatusBadRequest)
			return
		}
		name, _ := asked["model"].(string)
		model, found := models[name]
		if !found {
			http.Error(w, "no such model", http.StatusNotFound)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		model.ServeHTTP(w, r)
	}
	log.Fatal(http.ListenAndServe(listen, http.HandlerFunc(handler)))
}
